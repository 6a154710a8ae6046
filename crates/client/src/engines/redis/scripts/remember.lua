-- ARGV: grant, how long ago the start was (ms), its window (ms), and an id by which this note is known. Nothing if the grant is not
-- held; -1 if the start is noted down; else how long ago (ms) the start was that stands in its way.
--
-- A start is the time of Redis at which it was, and the id. It is forgotten when its window has passed.
if not holds() then return not_held(false) end
local now, ago, window = now_ms(), tonumber(ARGV[2]), tonumber(ARGV[3])
local start, noted = 'tenure:start:' .. key, now - ago
local last, id = string.match(redis.call('GET', start) or '', '^(%d+) (%S+)$')
if id == ARGV[4] then return -1 end
last = tonumber(last)
if last and (now - last < window or last >= noted) then return math.max(now - last, 0) end
if ago < window then redis.call('SET', start, whole(noted) .. ' ' .. ARGV[4], 'PX', whole(window - ago)) end
return -1
