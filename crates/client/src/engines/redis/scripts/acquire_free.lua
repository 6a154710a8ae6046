-- ARGV: `GRANT OWNER MODE REENTERS FAIR TURN`, ttl (ms), and details. REENTERS and FAIR are 1 or 0: whether the owner may re-enter, and
-- whether the queue decides. TURN is `CLIENT LEASE STAMP` for one who is to wait, the client to wake and what it is handed (see wake.lua), or
-- - or ?. What has as many characters in every request stands first, and all is one text, since each argument costs half as much as a call. That
-- text ends with OWNER if the rest would be `EX 0 0 -`.
--
-- Most locks are free, have no value, and nobody waits for them: that is answered before anything else is defined.
local key, who = KEYS[1], ARGV[1]
if #who == 65 and redis.call('EXISTS', key, 'tenure:value:' .. key, 'tenure:next:' .. key, 'tenure:queue:' .. key) == 0 then
  local token = redis.call('INCR', 'tenure:token')
  if token >= 1000000000000000 then
    local text = 'tenure1 ' .. who .. ' ' .. string.format('%d', token) .. ' EX ' .. ARGV[3]
    redis.call('SET', key, text, 'NX', 'PX', ARGV[2])
    return token
  end
end

local grant = string.sub(who, 1, 32)
