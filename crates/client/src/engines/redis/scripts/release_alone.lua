-- Most locks have one holder, nobody waits for them, and they have no value: that is answered before anything else is defined, and by the text
-- alone if it has no mark (see lock.lua).
--
-- ARGV: grant; `CLIENT` that asks, if others of that client wait and its connection has been through rise.lua, or `CLIENT MOST` if so many of them
-- may have it after the next one (see release_here.lua), or nothing; and those who had the lock before this grant and passed it on within their
-- client, the first of them first: Redis knows one of those. Frees what this grant holds, and takes it out of the queue; 1 if it held, 0 if not. If
-- it is one of that client's whose turn has come, the answer is the message for it.
local key, grant, here = KEYS[1], ARGV[1], ARGV[2] or ''
local held = redis.call('GET', key)
local freed = held and string.find(held, grant, 9, true) == 9
for at = 3, #ARGV do freed = freed or held and string.find(held, ARGV[at], 9, true) == 9 end
local alone = freed and string.sub(held, -1) ~= ' '
if alone or freed and here == '' then
  redis.call('DEL', key)
  if alone or redis.call('EXISTS', 'tenure:queue:' .. key, 'tenure:value:' .. key) == 0 then return 1 end
end
