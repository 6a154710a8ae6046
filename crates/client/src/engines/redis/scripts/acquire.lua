local function granted(token, beside_a_writer)
  if leave_queue(grant) or queued then redis.call('DEL', next_key) end
  local found = redis.call('GET', value)
  if not found then return tonumber(token) end
  local state = string.sub(found, 1, 1)
  local in_doubt = state == 'd' or state == 'D' or (state == 'o' and not beside_a_writer)
  if mode == 'EX' and not beside_a_writer then open_value() end
  return { tonumber(token), in_doubt and 1 or 0, string.sub(found, 2) }
end

-- Returns whether the queue lets this request through: no other waiter was woken just now, and with `fair` no waiter is ahead. A lock that
-- is offered to other programs is for requests that do not wait.
local function is_its_turn()
  local next = redis.call('GET', next_key)
  local first = (fair or next == '*') and redis.call('LINDEX', queue, '0')
  if next == '*' and first then return not queued and not fair end
  if not fair then return not next or next == '*' or next == grant end
  if first and first ~= grant then first = wake(nil, is_free()) end
  return not first or first == grant
end

local function join(token, now, beside_a_writer)
  add_member(grant, now + ttl, owner .. ' ' .. token .. ' ' .. mode .. ' ' .. details)
  settle(now)
  return granted(token, beside_a_writer)
end

if is_many(held) and not sweep(now_ms()) then held = false end

if not held then
  if not is_its_turn() then return busy(true) end
  local token = raise_token()
  if mode == 'EX' then
    local text = 'tenure1 ' .. grant .. ' ' .. owner .. ' ' .. whole(token) .. ' EX ' .. details
    redis.call('SET', key, marked(text), 'NX', 'PX', ttl)
    return granted(token, false)
  end
  begin_many('PR', '-', '-')
  local answer = join(whole(token), now_ms(), false)
  wake('PR')
  return answer
end

if is_mine(held) and noted(held, '') then
  -- The lock was taken without a script, and other keys of it exist.
  if not is_its_turn() then
    redis.call('DEL', key)
    wake(nil, is_free())
    return busy(true)
  end
  local token = raise_token()
  redis.call('SET', key, marked(noted(held, whole(token))), 'PX', ttl)
  return granted(token, false)
end

if is_mine(held) then
  -- The same request again: its first answer was lost.
  redis.call('PEXPIRE', key, ttl)
  return granted(string.match(held, '^tenure1 %S+ %S+ (%S+) '), true)
end

if is_many(held) then
  local now, theirs, of, token = now_ms(), string.match(held, '^tenure1 many (%S+) (%S+) (%S+)')
  if is_member(now) then
    local entry = redis.call('HGET', members, grant)
    redis.call('ZADD', leases, now + ttl, grant)
    settle(now)
    return granted(string.match(entry, '^%S+ (%S+) '), theirs == 'EX')
  end
  if theirs == 'EX' then
    if reenters and of == owner then return join(token, now, true) end
    return busy(true)
  end
  local own = reenters and token_of(owner)
  if mode == 'EX' then
    if own then return { 'held', 'PR' } end
    return busy(true)
  end
  if own then return join(own, now, false) end
  if not is_its_turn() then return busy(true) end
  local answer = join(whole(raise_token()), now, false)
  wake('PR')
  return answer
end

local first, token, rest = string.match(held, '^tenure1 (%x+) %x+ ([%d?]+) (.*)$')
if first then
  -- The owner that asks holds the lock, and may re-enter.
  local now, left = now_ms(), redis.call('PTTL', key)
  begin_many('EX', owner, token)
  add_member(first, now + left, owner .. ' ' .. token .. ' ' .. rest)
  return join(token, now, true)
end
return busy(false)
