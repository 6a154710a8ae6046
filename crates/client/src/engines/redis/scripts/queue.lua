-- The waiters, in the order of their arrival:
--
--   tenure:queue:KEY    list          GRANT
--   tenure:waiters:KEY  hash          GRANT: UNTIL MODE OWNER CLIENT LEASE STAMP DETAILS
--   tenure:next:KEY     string        the GRANT that was woken, for a moment; or `*` while the lock is offered to other programs
--   tenure:others:KEY   string        for how long (ms) the lock is handed on before it is offered to other programs again
--
-- A place is kept until UNTIL (ms), and each waiter asks again before then. A waiter that is gone causes no delay: its client does not
-- receive messages, and its place expires.
--
-- Constant numbers are passed to Redis as texts, since the conversion of a number is slow.
local queue, waiters = 'tenure:queue:' .. key, 'tenure:waiters:' .. key
local next_key, others = 'tenure:next:' .. key, 'tenure:others:' .. key
-- How long (ms) a place is kept for a waiter that does not ask again.
local kept = 10000

-- Parses an entry. The fields at its beginning have a fixed length, and are cut out: a pattern is slower.
local function entry_of(who)
  local entry = redis.call('HGET', waiters, who) or ''
  local lease, stamp, details = string.match(entry, '^(%d+) (%d+) (.*)$', 84)
  local until_ms = lease and tonumber(string.sub(entry, 1, 13))
  if not until_ms then return end
  local mode, owner, client = string.sub(entry, 15, 16), string.sub(entry, 18, 49), string.sub(entry, 51, 82)
  return until_ms, mode, owner, client, lease, stamp, details
end

-- Removes a waiter from the queue, whether it has an entry or not.
local function strike(who)
  redis.call('HDEL', waiters, who)
  redis.call('LREM', queue, '1', who)
end

-- Keeps both keys for at least as long as a place that was just taken or renewed. Reading the TTL costs less than setting it.
local function keep_queue(new)
  if new or redis.call('PTTL', waiters) < kept then
    redis.call('PEXPIRE', queue, 2 * kept)
    redis.call('PEXPIRE', waiters, 2 * kept)
  end
end

-- Removes expired waiters from the last 16. Expired waiters at the head are removed when their turn comes; others would remain for as long
-- as the queue exists.
local function strike_late(now)
  local last = redis.call('LRANGE', queue, -16, -1)
  for at, entry in ipairs(redis.call('HMGET', waiters, unpack(last))) do
    if tonumber(string.match(entry or '', '^%d+') or 0) <= now then strike(last[at]) end
  end
end

-- Returns whether this waiter is the first in the queue. Expired waiters ahead of it are removed.
local function is_first(who, now)
  while true do
    local first = redis.call('LINDEX', queue, '0')
    if not first or first == who then return first == who end
    local until_ms = entry_of(first)
    if until_ms and until_ms > now then return false end
    strike(first)
  end
end

-- Marks the text of a lock of this engine: it has a waiter (see lock.lua).
local function mark_wanted(held)
  if string.sub(held, -1) ~= ' ' then redis.call('APPEND', key, ' ') end
end

-- Other programs, and requests that do not wait, get a lock only if they find it free. So the lock is handed from one waiter to the next
-- until `yields_at` (ms), and then offered to the others for `offered_ms`. Each offer doubles the time until the next one, and a lock that
-- another program holds shortens it again.
local offered_ms, first_turn_ms, longest_turn_ms = 250, 2000, 8000

-- Returns until when a released lock with this text may be handed on, or nothing if it is to be offered to other programs.
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

-- Records that another program holds the lock: the next offers follow sooner.
local function note_another()
  redis.call('SET', others, '1000', 'PX', 120000)
end

-- Grants the lock to a waiter. In the text, `yields_at` is added at the beginning of the details, which are JSON.
local function give(who, owner, token, details, lease, yields_at)
  local text = 'tenure1 ' .. who .. ' ' .. owner .. ' ' .. token .. ' EX {"yields_at":' .. yields_at .. ','
  redis.call('SET', key, text .. string.sub(details, 2) .. ' ', 'PX', lease)
end
