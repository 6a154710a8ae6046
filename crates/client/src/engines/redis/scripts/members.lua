-- Several holders of one lock: readers, or one owner with several grants.
--
--   KEY                 tenure1 many MODE OWNER TOKEN     (OWNER and TOKEN are `-` for readers)
--   tenure:members:KEY  hash          GRANT: OWNER TOKEN MODE DETAILS
--   tenure:until:KEY    sorted set    GRANT by the end of its lease (ms)
--
-- All three expire with the lease that ends last.
local members, leases = 'tenure:members:' .. key, 'tenure:until:' .. key

local function is_writer(who)
  return string.match(redis.call('HGET', members, who) or '', '^%S+ %S+ EX ') ~= nil
end

local function any_writer()
  for _, entry in ipairs(redis.call('HVALS', members)) do
    if string.match(entry, '^%S+ %S+ EX ') then return true end
  end
  return false
end

-- Removes the holders whose lease is over. Returns the end of the last remaining lease, if there is one.
local function sweep(now)
  local over = redis.call('ZRANGEBYSCORE', leases, '-inf', now)
  for _, who in ipairs(over) do
    if is_writer(who) then doubt_value() end
    redis.call('ZREM', leases, who)
    redis.call('HDEL', members, who)
  end
  local last = redis.call('ZREVRANGE', leases, 0, 0, 'WITHSCORES')[2]
  if not last then redis.call('DEL', key, members, leases) end
  return last
end

-- Sets the TTL of the keys to the end of the last lease, and returns whether any is left. It is called after a join and not before: the
-- last lease may have ended since `now`, and Redis deletes a key at once if its new TTL is over.
local function settle(now)
  local last = sweep(now)
  if not last then return false end
  local left = math.max(last - now, 1)
  for _, each in ipairs({ key, members, leases }) do redis.call('PEXPIRE', each, left) end
  return true
end

local function is_member(now)
  local ends = redis.call('ZSCORE', leases, grant)
  return ends and tonumber(ends) > now
end

local function add_member(who, ends, entry)
  redis.call('ZADD', leases, ends, who)
  redis.call('HSET', members, who, entry)
end

-- Starts a list of holders. Members that remain from an earlier time are removed.
local function begin_many(mode, owner, token)
  redis.call('DEL', members, leases)
  -- The caller sets the TTL, in the same script.
  redis.call('SET', key, 'tenure1 many ' .. mode .. ' ' .. owner .. ' ' .. token, 'PX', 1000)
end

-- Returns the token of a holder with this owner.
local function token_of(owner)
  local all = redis.call('HVALS', members)
  for _, entry in ipairs(all) do
    local theirs, token = string.match(entry, '^(%S+) (%S+) ')
    if theirs == owner then return token end
  end
end
