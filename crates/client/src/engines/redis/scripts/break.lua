-- ARGV: nothing, whether by force. Marks all grants that hold the lock, and frees it if by force; answers with the text in the key,
-- then each grant and its entry where there are several.
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
-- First what needs no memory: once a script has changed something, Redis lets it use memory that it does not have.
if force then
  redis.call('DEL', key, members, leases)
elseif left > 0 then
  redis.call('PEXPIRE', key, left)
end
-- For longer than any of them can believe without having asked.
for _, who in ipairs(broken) do redis.call('SET', 'tenure:break:' .. who, '1', 'PX', math.max(left, 0) + 60000) end
if force then
  wake(nil, is_free(), held)
end
return answer
