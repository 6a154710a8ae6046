-- Those who wait, in the order in which they came:
--
--   tenure:queue:KEY    list          GRANT
--   tenure:waiters:KEY  hash          GRANT: UNTIL MODE OWNER CLIENT LEASE STAMP DETAILS
--   tenure:next:KEY     string        the GRANT that was told to ask, for a moment; or `*` while the lock is offered to others
--   tenure:others:KEY   string        for how long (ms) the lock is handed on before it is offered to others again
--
-- A place is kept until UNTIL (ms), and each who waits asks again in time. Who is gone is not waited for: nobody hears what is
-- published to its client, and its time will be over.
--
-- Numbers that are passed to Redis are texts where they can be: it takes long to write them down.
local queue, waiters = 'tenure:queue:' .. key, 'tenure:waiters:' .. key
local next_key, others = 'tenure:next:' .. key, 'tenure:others:' .. key
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

-- Takes out some at the end whose time is over: those at the beginning go when it is their turn, and the others would stay as long as
-- anybody waits.
local function strike_late(now)
  local last = redis.call('LRANGE', queue, -16, -1)
  for at, entry in ipairs(redis.call('HMGET', waiters, unpack(last))) do
    if tonumber(string.match(entry or '', '^%d+') or 0) <= now then strike(last[at]) end
  end
end

-- Whether this waiter is the first in line. Waiters before it whose time is over are taken out.
local function is_first(who, now)
  while true do
    local first = redis.call('LINDEX', queue, '0')
    if not first or first == who then return first == who end
    local until_ms = entry_of(first)
    if until_ms and until_ms > now then return false end
    strike(first)
  end
end

-- Marks the text of a lock that one of ours holds: somebody waits for it (see lock.lua).
local function mark_wanted(held)
  if string.sub(held, -1) ~= ' ' then redis.call('APPEND', key, ' ') end
end

-- Other programs, and requests that do not wait, get a lock only if they find it free. So it is handed from one waiter to the next until
-- `yields_at` (ms), and then offered to the others for OFFERED ms. It is handed on for the longer, the more often nobody else took it.
local offered_ms, first_turn_ms, longest_turn_ms = 250, 2000, 8000

-- Until when the lock with this text, which is released, may be handed on. Nothing, if it is to be offered to others.
local function handed_until(held, now)
  local yields_at = string.match(held or '', '^tenure1 %x+ %x+ %d+ EX {"yields_at":(%d+),')
  if yields_at then return tonumber(yields_at) > now and yields_at end
  if redis.call('GET', next_key) == '*' then return false end
  return whole(now + (redis.call('GET', others) or first_turn_ms))
end

local function offer_to_others()
  local turn = tonumber(redis.call('GET', others) or first_turn_ms)
  redis.call('SET', others, whole(math.min(2 * turn, longest_turn_ms)), 'PX', 120000)
  redis.call('SET', next_key, '*', 'PX', offered_ms)
end

-- Another program holds the lock: it is offered more often.
local function note_another()
  redis.call('SET', others, '1000', 'PX', 120000)
end

-- Gives the lock to a waiter. The text begins its details, which are JSON, with `yields_at`.
local function give(who, owner, token, details, lease, yields_at)
  local text = 'tenure1 ' .. who .. ' ' .. owner .. ' ' .. token .. ' EX {"yields_at":' .. yields_at .. ','
  redis.call('SET', key, text .. string.sub(details, 2) .. ' ', 'PX', lease)
end
