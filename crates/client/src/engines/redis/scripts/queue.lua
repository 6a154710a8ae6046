-- Those who wait, in the order in which they came:
--
--   tenure:queue:KEY    sorted set    GRANT by its place
--   tenure:waiters:KEY  hash          GRANT: UNTIL CLIENT MODE OWNER DETAILS
--   tenure:next:KEY     string        the GRANT that was woken, for a moment
--
-- A place is kept until UNTIL (ms), and each who waits asks again in time. Who is gone is not waited for: nobody hears what is
-- published to its client, and its time will be over.
local queue, waiters = 'tenure:queue:' .. key, 'tenure:waiters:' .. key

local function leave_queue(who)
  redis.call('HDEL', waiters, who)
  return redis.call('ZREM', queue, who) == 1
end

local function first_in_queue()
  return redis.call('ZRANGE', queue, 0, 0)[1]
end

-- Wakes the first who hears it; with `only`, if it asks for that mode. The one who was woken. Those whose time is over are taken out;
-- those whose client does not hear just now are passed over, and keep their places.
local function wake(only)
  local at, now, deaf = 0, nil, {}
  while true do
    local who = redis.call('ZRANGE', queue, at, at)[1]
    if not who then return nil end
    local until_ms, client, mode = string.match(redis.call('HGET', waiters, who) or '', '^(%d+) (%S+) (%S+) ')
    now = now or now_ms()
    if not until_ms or tonumber(until_ms) <= now then
      leave_queue(who)
    else
      if only and mode ~= only then return nil end
      if not deaf[client] then
        local heard = redis.pcall('PUBLISH', 'tenure:wake:' .. client, who)
        -- Whoever may not publish still lets go: those who wait look by themselves.
        if type(heard) == 'table' or heard > 0 then
          -- It has a moment to come before whoever finds the lock free may take it.
          if not only then redis.call('SET', 'tenure:next:' .. key, who, 'PX', 50) end
          return who
        end
        deaf[client] = true
      end
      at = at + 1
    end
  end
end

-- Takes out some at the end of the queue whose time is over: those at its beginning go when it is their turn, and the others would stay as
-- long as anybody waits.
local function forget_last()
  local now = now_ms()
  for _, who in ipairs(redis.call('ZREVRANGE', queue, 0, 15)) do
    local entry = redis.call('HGET', waiters, who)
    if not entry or tonumber(string.match(entry, '^%d+')) <= now then leave_queue(who) end
  end
end

-- Wakes whoever can get the lock as it is now.
local function serve()
  local held = redis.call('GET', key)
  if not held then return wake() end
  if string.sub(held, 1, 15) == 'tenure1 many PR' then return wake('PR') end
end
