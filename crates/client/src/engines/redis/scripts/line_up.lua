-- ARGV: of each who is to wait, its grant and `MODE OWNER CLIENT LEASE STAMP DETAILS`. Puts all of them into the queue, in this order: 1. Or 0, if it
-- is not one of ours who holds the lock, or if it is one of these: then each is to ask for itself.
local held = redis.call('GET', key)
if not string.find(held or '', '^tenure1 %x+ %x+ [%d?]+ ') then return 0 end
local holder = string.sub(held, 9, 40)
local now = now_ms()
local places, entries, until_ms = {}, {}, whole(now + kept) .. ' '
for at = 1, #ARGV, 2 do
  if ARGV[at] == holder then return 0 end
  places[#places + 1] = ARGV[at]
  entries[at], entries[at + 1] = ARGV[at], until_ms .. ARGV[at + 1]
end
redis.call('HSET', waiters, unpack(entries))
local length = redis.call('RPUSH', queue, unpack(places))
keep_queue(length == #places)
strike_late(now, #places)
mark_wanted(held)
return 1
