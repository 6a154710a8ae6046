do
  local fence, token = table.remove(KEYS), table.remove(ARGV)
  local newest = redis.call('GET', fence)
  if newest then
    if #newest > 20 or not string.match(newest, '^%d+$') then
      return redis.error_reply('TENUREDAMAGED ' .. string.gsub(string.sub(newest, 1, 40), '%c', '?'))
    end
    -- Lua's numbers are exact up to 2^53, and tokens go further: they are compared in two halves.
    local function halves(number)
      return tonumber(string.sub(number, 1, -11)) or 0, tonumber(string.sub(number, -10))
    end
    local high, low = halves(token)
    local newest_high, newest_low = halves(newest)
    if high < newest_high or (high == newest_high and low < newest_low) then
      return redis.error_reply('TENURESTALE ' .. newest)
    end
  end
  if newest ~= token then
    redis.call('SET', fence, token)
  end
end
