-- The time of Redis.
local function now_ms()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end

-- Numbers of this size would be written with an exponent.
local function whole(number)
  return string.format('%d', number)
end
