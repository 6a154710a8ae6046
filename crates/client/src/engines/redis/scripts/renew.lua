-- ARGV: grant, TTL (ms), token. 1 if the lease was renewed, 0 if the grant does not hold, 2 if an operator broke it.
local ttl = ARGV[2]
if redis.call('EXISTS', 'tenure:break:' .. grant) == 1 then return 2 end

local held = redis.call('GET', key)
if is_mine(held) then
  -- Commands that need no memory run first: once a script has written, Redis no longer refuses its commands for lack of memory.
  redis.call('PEXPIRE', key, ttl)
  local text = noted(held, ARGV[3])
  if text then redis.call('SET', key, text, 'PX', ttl) end
  return 1
end
if is_many(held) then
  local now = now_ms()
  if is_member(now) then
    -- As above.
    redis.call('PEXPIRE', key, ttl)
    redis.call('ZADD', leases, now + ttl, grant)
    settle(now)
    return 1
  end
end
return not_held(0)
