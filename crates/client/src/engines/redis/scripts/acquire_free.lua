-- Most locks are free, have no value, and are asked for by one who is in no queue: that is answered before anything else is defined.
--
-- ARGV: grant, owner, mode, ttl (ms), details, 1 if the owner may re-enter, 1 if the queue decides (fair), the client to wake
-- if this one is to wait, how long its place is kept (ms).
if ARGV[3] == 'EX' and ARGV[7] == '' and ARGV[8] == '' and redis.call('EXISTS', key, 'tenure:value:' .. key) == 0 then
  local token = redis.call('INCR', 'tenure:token')
  if token >= 1000000000000000 then
    local text = 'tenure1 ' .. grant .. ' ' .. ARGV[2] .. ' ' .. string.format('%.0f', token) .. ' EX ' .. ARGV[5]
    redis.call('SET', key, text, 'NX', 'PX', ARGV[4])
    return token
  end
end
