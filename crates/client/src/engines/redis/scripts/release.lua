if freed then
  close_value()
  wake()
  return 1
end
if is_many(held) then
  local now = now_ms()
  local any = settle(now)
  freed = any and redis.call('ZREM', leases, grant) == 1
  if freed then
    redis.call('HDEL', members, grant)
    any = settle(now)
    if not any then close_value() end
  end
  if not any then serve() end
end
if leave_queue(grant) then serve() end
return freed and 1 or 0
