-- The fencing token: one counter for all locks. It is never below the date in microseconds at which somebody last connected (see
-- rise.lua), so that it does not go back if Redis has forgotten it.
-- With `least`, which is not after the date, that one is not below it either: for those who need not have been through rise.lua.
local function raise_token(least)
  local token = redis.call('INCR', 'tenure:token')
  if token < (least or 1000000000000000) then
    local now = redis.call('TIME')
    token = now[1] * 1000000 + now[2]
    redis.call('SET', 'tenure:token', whole(token))
  end
  return token
end
