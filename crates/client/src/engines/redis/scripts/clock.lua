-- Returns the time of Redis, in milliseconds.
local function now_ms()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end

-- Formats a whole number. By default, large numbers are written with an exponent.
local function whole(number)
  return string.format('%d', number)
end
