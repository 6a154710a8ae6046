-- ARGV: the value of a try. Deletes the key if it has this value: 1. Else 0.
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 9, 8 + #ARGV[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
