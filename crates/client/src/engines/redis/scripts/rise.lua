-- Run once for each connection, before anything else. Brings the counter up to the date in microseconds: whoever speaks to a Redis
-- that has taken over from another, and has not seen all of its grants, gets larger tokens than that one gave, as far as
-- their clocks agree.
local now = redis.call('TIME')
now = now[1] * 1000000 + now[2]
local token = tonumber(redis.call('GET', 'tenure:token') or 0)
if token < now then redis.call('SET', 'tenure:token', string.format('%d', now)) end
return 1
