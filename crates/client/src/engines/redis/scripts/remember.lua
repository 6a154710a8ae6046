-- ARGV: grant, how long ago the start was (ms), its window (ms), and an id of this record. Nothing if the grant is not held; -1 if the
-- start is recorded; else how long ago (ms) the earlier start was that prevents it.
--
-- A start is its time by the clock of Redis, and the id. It expires at the end of its window.
if not holds() then return not_held(false) end
local now, ago, window = now_ms(), tonumber(ARGV[2]), tonumber(ARGV[3])
local start, noted = 'tenure:start:' .. key, now - ago
local last, id = string.match(redis.call('GET', start) or '', '^(%d+) (%S+)$')
if id == ARGV[4] then return -1 end
last = tonumber(last)
if last and (now - last < window or last >= noted) then return math.max(now - last, 0) end
if ago < window then redis.call('SET', start, whole(noted) .. ' ' .. ARGV[4], 'PX', whole(window - ago)) end
return -1
