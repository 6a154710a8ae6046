-- Most locks have one holder, no waiters and no value. This case is answered before anything else is defined, and by the text alone if it
-- has no mark (see lock.lua).
--
-- ARGV: grant, and the client that asks if it has other waiters. Frees what this grant holds, and removes it from the queue; 1 if it held,
-- 0 if not. If the next holder is a waiter of that client, the answer is the message for it.
local key, grant, here = KEYS[1], ARGV[1], ARGV[2]
local held = redis.call('GET', key)
local freed = held and string.find(held, grant, 9, true) == 9
local alone = freed and string.sub(held, -1) ~= ' '
if alone or freed and not here then
  redis.call('DEL', key)
  if alone or redis.call('EXISTS', 'tenure:queue:' .. key, 'tenure:value:' .. key) == 0 then return 1 end
end
