-- ARGV: grant, the token that it is to have. If the grant still holds the key here, no later one gets a smaller token through
-- this instance: 1. Else 0.
local held = redis.call('GET', key)
if not is_mine(held) then return 0 end
local token = ARGV[2]
if tonumber(redis.call('GET', 'tenure:token') or 0) < tonumber(token) then redis.call('SET', 'tenure:token', token) end
-- For those who look.
local before, after = string.match(held, '^(tenure1 %S+ %S+) %S+ (.*)$')
local left = redis.call('PTTL', key)
if left > 0 then redis.call('SET', key, before .. ' ' .. token .. ' ' .. after, 'PX', left) end
return 1
