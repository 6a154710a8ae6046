-- What one held alone is freed, if that was not done at once: whose turn it is.
if freed then
  if here then redis.call('DEL', key) end
  wake(nil, not close_value(), held)
  return 1
end
