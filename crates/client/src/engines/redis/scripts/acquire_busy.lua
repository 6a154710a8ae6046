-- Who finds another holder waits: that is answered before anything else is defined, since each function that a script defines costs it as
-- much as a call.
--
-- Answers with the token; or {token, 1 if the value is in doubt, its bytes}; or {'busy', ms until it expires, place in the
-- queue, 1 if its holder will wake us}; or {'held', mode} if the owner holds it in a mode that does not cover this one.
local owner, ttl, details = string.sub(who, 34), ARGV[2], ARGV[3]
local mode, reenters, fair, client, place_ms, lease, stamp =
  string.match(ARGV[4] or 'EX', '^(%S+) ?(%S*) ?(%S*) ?(%S*) ?(%S*) ?(%S*) ?(%S*)$')
reenters, fair = reenters == '1', fair == '1'
-- Whether it may have a place in the queue, and whether it asks for one: `-` never did, and `?` would not hear whose turn it is.
local queued = client ~= '' and client ~= '-'
local queues = queued and client ~= '?'

-- `one` is the text of the lock if one of ours holds it.
local function busy(by_ours, one)
  local place = 0
  if queues then
    local place_ends, turn = whole(now_ms() + place_ms), lease .. ' ' .. stamp
    local entry = place_ends .. ' ' .. client .. ' ' .. turn .. ' ' .. mode .. ' ' .. owner .. ' ' .. details
    place = redis.call('HSET', waiters, grant, entry) == 0 and redis.call('LPOS', queue, grant)
    local is_new = not place
    place = place or redis.call('RPUSH', queue, grant) - 1
    -- What is done for every newcomer in a short queue is done for some of them in a long one: there are others who come.
    if not is_new or place < 16 or place % 16 == 0 then
      redis.call('PEXPIRE', queue, place_ms)
      redis.call('PEXPIRE', waiters, place_ms)
    end
    if place % 16 == 0 then forget_last() end
    if one and marked(one) ~= one then redis.call('APPEND', key, ' ') end
  end
  -- When it expires concerns only who is first.
  return { 'busy', place == 0 and redis.call('PTTL', key) or -1, place, by_ours and 1 or 0 }
end

local held = redis.call('GET', key)
local by_another = held and not is_mine(held) and not is_many(held)
local theirs = by_another and string.match(held, '^tenure1 %S+ (%S+) [%d?]+ ')
if theirs and not (reenters and theirs == owner) then return busy(true, held) end
