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

-- Both live for at least as long as a place that was just taken, in a queue that is `new` or not. To set that costs more than to see that
-- it need not be.
local function keep_queue(new)
  if new or redis.call('PTTL', waiters) < kept then
    redis.call('PEXPIRE', queue, 2 * kept)
    redis.call('PEXPIRE', waiters, 2 * kept)
  end
end

-- Takes out some at the end whose time is over, before as many newcomers: those at the beginning go when it is their turn, and the others
-- would stay as long as anybody waits.
local function strike_late(now, newcomers)
  local last = redis.call('LRANGE', queue, -16 - newcomers, -1 - newcomers)
  if not last[1] then return end
  for at, entry in ipairs(redis.call('HMGET', waiters, unpack(last))) do
    if tonumber(string.match(entry or '', '^%d+') or 0) <= now then strike(last[at]) end
  end
end

-- Marks the text of a lock that one of ours holds: somebody waits for it (see lock.lua).
local function mark_wanted(held)
  if string.sub(held, -1) ~= ' ' then redis.call('APPEND', key, ' ') end
end

-- Gives the lock to one who waits.
local function give(who, owner, token, details, lease)
  local text = 'tenure1 ' .. who .. ' ' .. owner .. ' ' .. token .. ' EX ' .. details .. ' '
  redis.call('SET', key, text, 'PX', lease)
end
