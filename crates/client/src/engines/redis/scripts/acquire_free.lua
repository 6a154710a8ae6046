-- ARGV: `GRANT OWNER`, ttl (ms), details, and `MODE REENTERS FAIR TURN`: whether the owner may re-enter and whether the queue decides
-- (1 or 0), and if this one is to wait `CLIENT LEASE STAMP`, the client to wake and what it is handed (see wake.lua), or - or ?. That is one
-- text, and left out if it would be `EX 0 0 -`, since each argument costs as much as a call.
--
-- Most locks are free, have no value, and nobody waits for them: that is answered before anything else is defined.
local key, who = KEYS[1], ARGV[1]
if not ARGV[4] and redis.call('EXISTS', key, 'tenure:value:' .. key, 'tenure:next:' .. key, 'tenure:queue:' .. key) == 0 then
  local token = redis.call('INCR', 'tenure:token')
  if token >= 1000000000000000 then
    local text = 'tenure1 ' .. who .. ' ' .. string.format('%d', token) .. ' EX ' .. ARGV[3]
    redis.call('SET', key, text, 'NX', 'PX', ARGV[2])
    return token
  end
end

local grant = string.sub(who, 1, 32)
