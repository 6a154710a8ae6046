-- Who finds another holder waits: that is answered before anything else is defined, since each function that a script defines costs
-- something.
--
-- Answers with the token; or {token, 1 if the value is in doubt, its bytes}; or {'busy', ms until it expires if this one is first, place in
-- the queue, 1 if its holder will wake us}; or {'held', mode} if the owner holds it in a mode that does not cover this one.
local owner, ttl, details = string.sub(who, 34), ARGV[2], ARGV[3]
local mode, reenters, fair, place_ms, turn = string.match(ARGV[4] or 'EX 0 0 0 -', '^(%S+) (%S+) (%S+) (%S+) (.*)$')
reenters, fair = reenters == '1', fair == '1'
-- Whether it may have a place in the queue, and whether it asks for one: `-` never did, and `?` would not hear whose turn it is.
local queued = turn ~= '-'
local queues = queued and turn ~= '?'

-- `one` is the text of the lock if one of ours holds it.
local function busy(by_ours, one)
  local place = 0
  if queues then
    local now = now_ms()
    local entry = whole(now + place_ms) .. ' ' .. turn .. ' ' .. mode .. ' ' .. owner .. ' ' .. details
    place = redis.call('HSET', waiters, grant, entry) == 0 and redis.call('LPOS', queue, grant)
    local is_new = not place
    place = place or redis.call('RPUSH', queue, grant) - 1
    -- What is done for every newcomer in a short queue is done for some of them in a long one: there are others who come.
    if not is_new or place < 16 or place % 16 == 0 then
      redis.call('PEXPIRE', queue, place_ms)
      redis.call('PEXPIRE', waiters, place_ms)
    end
    if place % 16 == 0 then
      -- Takes out some at the end whose time is over: those at the beginning go when it is their turn, and the others would stay as long as
      -- anybody waits.
      local last = redis.call('LRANGE', queue, '-16', '-1')
      for at, entry in ipairs(redis.call('HMGET', waiters, unpack(last))) do
        if not entry or tonumber(string.match(entry, '^%d+')) <= now then leave_queue(last[at]) end
      end
    end
    if one and string.sub(one, -1) ~= ' ' then redis.call('APPEND', key, ' ') end
  end
  return { 'busy', place == 0 and redis.call('PTTL', key) or -1, place, by_ours and 1 or 0 }
end

local held = redis.call('GET', key)
local by, of = string.match(held or '', '^tenure1 (%S+) (%S+) [%d?]+ ')
if by and by ~= grant and by ~= 'many' and not (reenters and of == owner) then return busy(true, held) end
