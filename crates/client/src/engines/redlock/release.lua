-- ARGV: the value of an attempt. Answers 1 if the key has this value, and deletes it. Answers 0 otherwise.
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 9, 8 + #ARGV[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
