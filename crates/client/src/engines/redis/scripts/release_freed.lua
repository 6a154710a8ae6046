-- What one held alone is free: whose turn it is.
if freed then
  local _, message = wake(nil, not close_value(), here)
  return message or 1
end
