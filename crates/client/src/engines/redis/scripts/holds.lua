local function holds()
  local held = redis.call('GET', key)
  return is_mine(held) or (is_many(held) and is_member(now_ms()))
end
