-- ARGV: grant, the text for the key, TTL (ms). Takes the key if it is free, and answers with this instance's counter; -1 if the key is not
-- free. The counter is never behind the date in microseconds, so that an instance that has lost it does not vote for a small one.
if not redis.call('SET', key, ARGV[2], 'NX', 'PX', ARGV[3]) then return -1 end
local now = redis.call('TIME')
return math.max(tonumber(redis.call('GET', 'tenure:token') or 0), now[1] * 1000000 + now[2])
