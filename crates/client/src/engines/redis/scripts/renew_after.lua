-- The lock was passed on within a client, which has not told Redis yet (see relay.rs): Redis knows one of those by whom it went. From now on it
-- knows this one.
--
-- ARGV, behind those of renew.lua: all who had the lock before this one, the first of them first.
local held, known = redis.call('GET', key), false
for at = 4, #ARGV do
  -- Who is to let go of the lock is whoever has it.
  if redis.call('EXISTS', 'tenure:break:' .. ARGV[at]) == 1 then return 2 end
  known = known or held and string.find(held, ARGV[at], 9, true) == 9
end
if known then
  local _, _, owner, _, _, _, details = entry_of(grant)
  -- If somebody has deleted the queue, it is shown with what was said of the one before it.
  if not owner then owner, details = string.match(held, '^tenure1 %S+ (%S+) %S+ EX (.-) *$') end
  -- First what needs no memory: once a script has changed something, Redis lets it use memory that it does not have.
  redis.call('PEXPIRE', key, ARGV[2])
  for at = 5, #ARGV do strike(ARGV[at]) end
  strike(grant)
  local text = 'tenure1 ' .. grant .. ' ' .. owner .. ' ' .. ARGV[3] .. ' EX ' .. details
  redis.call('SET', key, text .. string.match(held, ' *$'), 'PX', ARGV[2])
end
