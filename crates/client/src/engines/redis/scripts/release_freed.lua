-- What one held alone is free: whose turn it is.
if freed then
  redis.call('DEL', key)
  wake(nil, not close_value())
  return 1
end
