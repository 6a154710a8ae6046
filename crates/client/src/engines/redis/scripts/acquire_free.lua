-- ARGV: `GRANT OWNER MODE REENTERS FAIR TURN`, TTL (ms), and details. REENTERS and FAIR are 1 or 0: whether the owner may re-enter, and
-- whether the queue decides. TURN is `CLIENT LEASE STAMP` for a request that asks for a place in the queue: the client to wake, and the
-- terms of a grant that is handed over (see wake.lua). It is `?` for a request that waits without asking for a place, and `-` for one that
-- does not wait. Fields of fixed length come first. All of it is one text, since each argument costs half as much as a call. That text is
-- `GRANT OWNER` for `EX 0 0 -`, and `GRANT OWNER ?` for `EX 0 0 ?`.
--
-- Most locks are free, without a value and without waiters. This case is answered before anything else is defined.
local key, who = KEYS[1], ARGV[1]
if #who < 68 and redis.call('EXISTS', key, 'tenure:value:' .. key, 'tenure:next:' .. key, 'tenure:queue:' .. key) == 0 then
  local token = raise_token()
  local text = 'tenure1 ' .. string.sub(who, 1, 65) .. ' ' .. string.format('%d', token) .. ' EX ' .. ARGV[3]
  redis.call('SET', key, text, 'NX', 'PX', ARGV[2])
  return token
end

local grant = string.sub(who, 1, 32)
