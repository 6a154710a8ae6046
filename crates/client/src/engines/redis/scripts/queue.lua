-- Those who wait, in the order in which they came:
--
--   tenure:queue:KEY    list          GRANT
--   tenure:waiters:KEY  hash          GRANT: UNTIL MODE OWNER CLIENT LEASE STAMP DETAILS
--   tenure:next:KEY     string        the GRANT that was woken, for a moment
--
-- A place is kept until UNTIL (ms), and each who waits asks again in time. Who is gone is not waited for: nobody hears what is
-- published to its client, and its time will be over.
--
-- Numbers that are passed to Redis are texts where they can be: it takes long to write them down.
local queue, waiters = 'tenure:queue:' .. key, 'tenure:waiters:' .. key
-- How long a place is kept (ms) for one who does not ask again.
local kept = 10000

-- What stands first has as many characters in every entry, and is cut out: a pattern takes longer.
local function entry_of(who)
  local entry = redis.call('HGET', waiters, who) or ''
  local lease, stamp, details = string.match(entry, '^(%d+) (%d+) (.*)$', 84)
  local until_ms = lease and tonumber(string.sub(entry, 1, 13))
  if not until_ms then return end
  local mode, owner, client = string.sub(entry, 15, 16), string.sub(entry, 18, 49), string.sub(entry, 51, 82)
  return until_ms, mode, owner, client, lease, stamp, details
end

-- Takes out one who was found there, whether it has an entry or not.
local function strike(who)
  redis.call('HDEL', waiters, who)
  redis.call('LREM', queue, '1', who)
end

-- Gives the lock to one who waits.
local function give(who, owner, token, details, lease)
  local text = 'tenure1 ' .. who .. ' ' .. owner .. ' ' .. token .. ' EX ' .. details .. ' '
  redis.call('SET', key, text, 'PX', lease)
end
