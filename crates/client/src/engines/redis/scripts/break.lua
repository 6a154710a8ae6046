-- ARGV: nothing, whether by force. Marks all grants that hold the lock, and with force frees it. Answers with the text in the key, then
-- with each grant and its entry if there are several.
local force = ARGV[2] == '1'
local held = redis.call('GET', key)
if is_many(held) and not sweep(now_ms()) then held = false end
if not held then return {} end

local answer, broken = { held }, {}
if is_many(held) then
  local all = redis.call('HGETALL', members)
  for at = 1, #all, 2 do
    broken[#broken + 1] = all[at]
    answer[#answer + 1] = all[at]
    answer[#answer + 1] = all[at + 1]
  end
else
  broken[1] = string.match(held, '^tenure1 (%S+) %S+ %S+ EX ')
end
local left = redis.call('PTTL', key)
-- Commands that need no memory run first: once a script has written, Redis no longer refuses its commands for lack of memory.
if force then
  redis.call('DEL', key, members, leases)
elseif left > 0 then
  redis.call('PEXPIRE', key, left)
end
-- The mark outlasts every holder's lease without a renewal.
for _, who in ipairs(broken) do redis.call('SET', 'tenure:break:' .. who, '1', 'PX', math.max(left, 0) + 60000) end
if force then
  wake(nil, is_free(), held)
end
return answer
