-- ARGV: nothing. Answers with the type of the key, its text, the value, the holders if there are several, and the waiters in order.
local kind = redis.call('TYPE', key).ok
local held = kind == 'string' and redis.call('GET', key)
local now = now_ms()
local present = redis.call('ZRANGEBYSCORE', leases, '(' .. whole(now), '+inf')
local members_of, waiting = {}, {}
if is_many(held) then
  for _, who in ipairs(present) do
    members_of[#members_of + 1] = who
    members_of[#members_of + 1] = redis.call('HGET', members, who)
  end
end
for _, who in ipairs(redis.call('LRANGE', queue, 0, -1)) do
  local until_ms, mode, owner, _, _, _, details = entry_of(who)
  if until_ms and until_ms > now then
    waiting[#waiting + 1] = who
    waiting[#waiting + 1] = mode .. ' ' .. owner .. ' ' .. details
  end
end
return { kind, held, redis.call('GET', value), members_of, waiting }
