-- Those who wait, in the order in which they came:
--
--   tenure:queue:KEY    list          GRANT
--   tenure:waiters:KEY  hash          GRANT: UNTIL CLIENT LEASE STAMP MODE OWNER DETAILS
--   tenure:next:KEY     string        the GRANT that was woken, for a moment
--
-- A place is kept until UNTIL (ms), and each who waits asks again in time. Who is gone is not waited for: nobody hears what is
-- published to its client, and its time will be over.
--
-- Numbers that are passed to Redis are texts where they can be: it takes long to write them down.
local queue, waiters = 'tenure:queue:' .. key, 'tenure:waiters:' .. key

local function entry_of(who)
  return string.match(redis.call('HGET', waiters, who) or '', '^(%d+) (%S+) (%d+) (%d+) (%S+) (%S+) (.*)$')
end

-- Whether it stood there. Most who ask this did not, and a list has to be searched.
local function leave_queue(who)
  local stood = redis.call('HDEL', waiters, who) == 1
  if stood then redis.call('LREM', queue, '1', who) end
  return stood
end

-- Takes out one who was found there, whether it has an entry or not.
local function strike(who)
  if not leave_queue(who) then redis.call('LREM', queue, '1', who) end
end

-- Gives the lock to one who waits.
local function give(who, owner, token, details, lease)
  local text = 'tenure1 ' .. who .. ' ' .. owner .. ' ' .. token .. ' EX ' .. details .. ' '
  redis.call('SET', key, text, 'PX', lease)
end
