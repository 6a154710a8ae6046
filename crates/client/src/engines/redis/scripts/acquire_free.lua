-- ARGV: `GRANT OWNER MODE REENTERS FAIR TURN`, ttl (ms), and details. REENTERS and FAIR are 1 or 0: whether the owner may re-enter, and
-- whether the queue decides. TURN is `CLIENT LEASE STAMP` for a request that is to have a place in the queue, the client to wake and what it is
-- handed (see wake.lua), `?` for one that waits without a place, or `-` for one that does not wait. What has as many characters in every
-- request stands first, and all is one text, since each argument costs half as much as a call. That text is `GRANT OWNER` for `EX 0 0 -`, and
-- `GRANT OWNER ?` for `EX 0 0 ?`.
--
-- Most locks are free, have no value, and nobody waits for them: that is answered before anything else is defined.
local key, who = KEYS[1], ARGV[1]
if #who < 68 and redis.call('EXISTS', key, 'tenure:value:' .. key, 'tenure:next:' .. key, 'tenure:queue:' .. key) == 0 then
  local token = raise_token()
  local text = 'tenure1 ' .. string.sub(who, 1, 65) .. ' ' .. string.format('%d', token) .. ' EX ' .. ARGV[3]
  redis.call('SET', key, text, 'NX', 'PX', ARGV[2])
  return token
end

local grant = string.sub(who, 1, 32)
