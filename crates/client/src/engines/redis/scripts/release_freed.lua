-- Frees the lock of a single holder, if that was not done yet, and wakes the next waiter.
if freed then
  if here then redis.call('DEL', key) end
  wake(nil, not close_value(), held)
  return 1
end
