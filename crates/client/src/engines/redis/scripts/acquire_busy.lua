-- A lock that another grant holds is answered before anything else is defined, since each function that a script defines costs time.
--
-- Answers with one of these:
-- - the token;
-- - {token, 1 if the value is in doubt, its bytes};
-- - `busy WAKES`: WAKES is 1 if the holder's release wakes a waiter. For the first in the queue, the milliseconds follow until the lock
--   expires, or until it is free for waiters again;
-- - {'held', mode} if the owner holds the lock in a mode that does not cover the requested mode.
if #who < 68 then who = string.sub(who, 1, 65) .. ' EX 0 0 ' .. (#who == 65 and '-' or '?') end
local owner, mode, turn = string.sub(who, 34, 65), string.sub(who, 67, 68), string.sub(who, 74)
local reenters, fair = string.sub(who, 70, 70) == '1', string.sub(who, 72, 72) == '1'
local ttl, details = ARGV[2], ARGV[3]
-- Whether the request waits, and whether it asks for a place in the queue: `-` does not wait, and `?` waits without asking for a place.
local queued = turn ~= '-'
local queues = queued and turn ~= '?'

-- Answers a request that does not get the lock. `one` is the text of the lock if one grant of this engine holds it.
local function busy(by_ours, one)
  local place = 0
  if queues then
    local now = now_ms()
    local entry = whole(now + kept) .. ' ' .. mode .. ' ' .. owner .. ' ' .. turn .. ' ' .. details
    local is_new = redis.call('HSET', waiters, grant, entry) == 1
    if not is_new and redis.call('LLEN', queue) < redis.call('HLEN', waiters) then
      -- The queue was deleted, and the requests of its waiters form a new one.
      redis.call('LREM', queue, '1', grant)
      is_new = true
    end
    if is_new then
      place = redis.call('RPUSH', queue, grant) - 1
    else
      place = is_first(grant, now) and 0 or 1
    end
    keep_queue(place == 0)
    if place % 16 == 0 then strike_late(now) end
    if one then mark_wanted(one) end
    if not by_ours then note_another() end
  end
  local answer = by_ours and 'busy 1' or 'busy 0'
  if place ~= 0 then return answer end
  local left = redis.call('PTTL', key)
  if left == -2 then left = redis.call('PTTL', next_key) end
  return answer .. ' ' .. left
end

local held = redis.call('GET', key)
local by_one = string.find(held or '', '^tenure1 %x+ %x+ [%d?]+ ')
if by_one and string.sub(held, 9, 40) ~= grant and not (reenters and string.sub(held, 42, 73) == owner) then
  return busy(true, held)
end
