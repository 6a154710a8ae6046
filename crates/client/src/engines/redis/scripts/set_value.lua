-- ARGV: grant, bytes. 1 if they were written, 0 if the grant does not hold.
if not holds() then return not_held(0) end
if ARGV[2] == '' then
  redis.call('DEL', value)
else
  redis.call('SET', value, 'o' .. ARGV[2])
  local held = redis.call('GET', key)
  if is_mine(held) and held ~= marked(held) then redis.call('APPEND', key, string.sub(marked(held), #held + 1)) end
end
return 1
