-- Answers with the token; or {token, 1 if the value is in doubt, its bytes}; or {'busy', ms until it expires, place in the
-- queue, 1 if its holder will wake us}; or {'held', mode} if the owner holds it in a mode that does not cover this one.
local owner, ttl, details = string.sub(who, 34), ARGV[2], ARGV[3]
local mode, reenters, fair, client, place_ms, lease, stamp =
  string.match(ARGV[4] or 'EX', '^(%S+) ?(%S*) ?(%S*) ?(%S*) ?(%S*) ?(%S*) ?(%S*)$')
reenters, fair = reenters == '1', fair == '1'
-- Whether it may have a place in the queue, and whether it asks for one: `-` never did, and `?` would not hear whose turn it is.
local queued = client ~= '' and client ~= '-'
local queues = queued and client ~= '?'

local function granted(token, beside_a_writer)
  if queued then
    leave_queue(grant)
    redis.call('DEL', 'tenure:next:' .. key)
  end
  local found = redis.call('GET', value)
  if not found then return tonumber(token) end
  local state = string.sub(found, 1, 1)
  local in_doubt = state == 'd' or state == 'D' or (state == 'o' and not beside_a_writer)
  if mode == 'EX' and not beside_a_writer then open_value() end
  return { tonumber(token), in_doubt and 1 or 0, string.sub(found, 2) }
end

-- `one` is the text of the lock if one of ours holds it.
local function busy(by_ours, one)
  local place = 0
  if queues then
    -- The counter of tokens also counts those who come.
    redis.call('ZADD', queue, 'NX', whole(raise_token()), grant)
    local place_ends, turn = whole(now_ms() + place_ms), lease .. ' ' .. stamp
    local entry = place_ends .. ' ' .. client .. ' ' .. turn .. ' ' .. mode .. ' ' .. owner .. ' ' .. details
    redis.call('HSET', waiters, grant, entry)
    redis.call('PEXPIRE', queue, place_ms)
    redis.call('PEXPIRE', waiters, place_ms)
    place = redis.call('ZRANK', queue, grant)
    if place % 8 == 0 then forget_last() end
    if one and marked(one) ~= one then redis.call('APPEND', key, ' ') end
  end
  return { 'busy', redis.call('PTTL', key), place, by_ours and 1 or 0 }
end

-- Whether the queue lets this one through: it is the one who was woken, or with `fair` all before it are gone.
local function is_its_turn()
  if not fair then
    local next = redis.call('GET', 'tenure:next:' .. key)
    return not next or next == grant
  end
  local first = first_in_queue()
  if first and first ~= grant then first = wake(nil, is_free()) end
  return not first or first == grant
end

local function join(token, now, beside_a_writer)
  add_member(grant, now + ttl, owner .. ' ' .. token .. ' ' .. mode .. ' ' .. details)
  settle(now)
  return granted(token, beside_a_writer)
end

local held = redis.call('GET', key)

if is_many(held) and not settle(now_ms()) then held = false end

if not held then
  if not is_its_turn() then return busy(true) end
  local token = raise_token()
  if mode == 'EX' then
    local text = 'tenure1 ' .. grant .. ' ' .. owner .. ' ' .. whole(token) .. ' EX ' .. details
    redis.call('SET', key, marked(text), 'NX', 'PX', ttl)
    return granted(token, false)
  end
  begin_many('PR', '-', '-')
  local answer = join(whole(token), now_ms(), false)
  wake('PR')
  return answer
end

if is_mine(held) and noted(held, '') then
  -- It was taken without a script, and there is more to it.
  if not is_its_turn() then
    redis.call('DEL', key)
    wake(nil, is_free())
    return busy(true)
  end
  local token = raise_token()
  redis.call('SET', key, marked(noted(held, whole(token))), 'PX', ttl)
  return granted(token, false)
end

if is_mine(held) then
  -- The same request once more: its answer was lost.
  redis.call('PEXPIRE', key, ttl)
  return granted(string.match(held, '^tenure1 %S+ %S+ (%S+) '), true)
end

if is_many(held) then
  local now, theirs, of, token = now_ms(), string.match(held, '^tenure1 many (%S+) (%S+) (%S+)')
  if is_member(now) then
    local entry = redis.call('HGET', members, grant)
    redis.call('ZADD', leases, now + ttl, grant)
    settle(now)
    return granted(string.match(entry, '^%S+ (%S+) '), theirs == 'EX')
  end
  if theirs == 'EX' then
    if reenters and of == owner then return join(token, now, true) end
    return busy(true)
  end
  local own = reenters and token_of(owner)
  if mode == 'EX' then
    if own then return { 'held', 'PR' } end
    return busy(true)
  end
  if own then return join(own, now, false) end
  if not is_its_turn() then return busy(true) end
  local answer = join(whole(raise_token()), now, false)
  wake('PR')
  return answer
end

local first, theirs, token, rest = string.match(held, '^tenure1 (%S+) (%S+) ([%d?]+) (.*)$')
if reenters and theirs == owner then
  local now, left = now_ms(), redis.call('PTTL', key)
  begin_many('EX', owner, token)
  add_member(first, now + left, owner .. ' ' .. token .. ' ' .. rest)
  return join(token, now, true)
end
return busy(first ~= nil, first and held)
