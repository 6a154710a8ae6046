-- ARGV: grant, ttl (ms), token. 1 if it was renewed, 0 if it is not held, 2 if an operator broke it.
local ttl = ARGV[2]
if redis.call('EXISTS', 'tenure:break:' .. grant) == 1 then return 2 end

local held = redis.call('GET', key)
if is_mine(held) then
  -- First what needs no memory: once a script has changed something, Redis lets it use memory that it does not have.
  redis.call('PEXPIRE', key, ttl)
  local text = noted(held, ARGV[3])
  if text then redis.call('SET', key, text, 'PX', ttl) end
  return 1
end
if is_many(held) then
  local now = now_ms()
  if is_member(now) then
    -- First what needs no memory, as above.
    redis.call('PEXPIRE', key, ttl)
    redis.call('ZADD', leases, now + ttl, grant)
    settle(now)
    return 1
  end
end
return not_held(0)
