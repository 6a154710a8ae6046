-- ARGV: nothing. Answers how long ago (ms) the last start was, if it is remembered.
local last = string.match(redis.call('GET', 'tenure:start:' .. key) or '', '^%d+')
if not last then return false end
return math.max(now_ms() - last, 0)
