if is_many(held) then
  local now = now_ms()
  local any = sweep(now)
  local wrote = any and is_writer(grant)
  freed = any and redis.call('ZREM', leases, grant) == 1
  if freed then
    redis.call('HDEL', members, grant)
    if wrote and not any_writer() then close_value() end
    any = settle(now)
  end
  if not any then serve() end
end
local was_first = redis.call('LINDEX', queue, '0') == grant
if leave_queue(grant) then
  if was_first and redis.call('EXISTS', key) == 1 then promote() else serve() end
end
return freed and 1 or not_held(0)
