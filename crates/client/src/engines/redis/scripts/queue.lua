-- Those who wait, in the order in which they came:
--
--   tenure:queue:KEY    list          GRANT
--   tenure:waiters:KEY  hash          GRANT: UNTIL CLIENT LEASE STAMP MODE OWNER DETAILS
--   tenure:next:KEY     string        the GRANT that was woken, for a moment
--
-- A place is kept until UNTIL (ms), and each who waits asks again in time. Who is gone is not waited for: nobody hears what is
-- published to its client, and its time will be over.
local queue, waiters = 'tenure:queue:' .. key, 'tenure:waiters:' .. key

local function leave_queue(who)
  redis.call('HDEL', waiters, who)
  return redis.call('LREM', queue, '1', who) == 1
end

local function first_in_queue()
  return redis.call('LINDEX', queue, '0')
end

-- Takes out some at the end of the queue whose time is over: those at its beginning go when it is their turn, and the others would stay as
-- long as anybody waits.
local function forget_last()
  local now, last = now_ms(), redis.call('LRANGE', queue, '-16', '-1')
  for at, entry in ipairs(redis.call('HMGET', waiters, unpack(last))) do
    if not entry or tonumber(string.match(entry, '^%d+')) <= now then leave_queue(last[at]) end
  end
end
