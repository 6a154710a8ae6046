-- ARGV: grant, its token. Answers 1 if the grant still holds the key here: then no later grant gets a smaller token through this instance.
-- Answers 0 otherwise.
local held = redis.call('GET', key)
if not is_mine(held) then return 0 end
local token = ARGV[2]
if tonumber(redis.call('GET', 'tenure:token') or 0) < tonumber(token) then redis.call('SET', 'tenure:token', token) end
-- The text shows the token to observers.
local before, after = string.match(held, '^(tenure1 %S+ %S+) %S+ (.*)$')
local left = redis.call('PTTL', key)
if left > 0 then redis.call('SET', key, before .. ' ' .. token .. ' ' .. after, 'PX', left) end
return 1
