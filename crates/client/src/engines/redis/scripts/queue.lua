-- Those who wait, in the order in which they came:
--
--   tenure:queue:KEY    sorted set    GRANT by its place
--   tenure:waiters:KEY  hash          GRANT: UNTIL CLIENT MODE OWNER DETAILS
--
-- A place is kept until UNTIL (ms), and each who waits asks again in time. Who is gone is not waited for: either its time is
-- over, or nobody hears what is published to its client.
local queue, waiters = 'tenure:queue:' .. key, 'tenure:waiters:' .. key

local function leave_queue(who)
  redis.call('HDEL', waiters, who)
  return redis.call('ZREM', queue, who) == 1
end

local function first_in_queue()
  return redis.call('ZRANGE', queue, 0, 0)[1]
end

-- Wakes the first who is there and takes out those before it who are not; with `only`, wakes it if it asks for that mode. The one who
-- was woken.
local function wake(only)
  local now
  while true do
    local first = first_in_queue()
    if not first then return nil end
    local entry = redis.call('HGET', waiters, first)
    if entry then
      now = now or now_ms()
      local until_ms, client, mode = string.match(entry, '^(%d+) (%S+) (%S+) ')
      if tonumber(until_ms) > now then
        if only and mode ~= only then return nil end
        local heard = redis.pcall('PUBLISH', 'tenure:wake:' .. client, first)
        -- Whoever may not publish still lets go: those who wait look by themselves.
        if type(heard) == 'table' or heard > 0 then return first end
      end
    end
    leave_queue(first)
  end
end

-- Wakes whoever can get the lock as it is now.
local function serve()
  local held = redis.call('GET', key)
  if not held then return wake() end
  if string.sub(held, 1, 15) == 'tenure1 many PR' then return wake('PR') end
end
