-- Waking and granting: the choice of the next waiter.

-- Removes a waiter from the queue, and returns whether it had a place. The hash is tried first: most callers have no place, and a list has
-- to be searched.
local function leave_queue(who)
  local stood = redis.call('HDEL', waiters, who) == 1
  if stood then redis.call('LREM', queue, '1', who) end
  return stood
end

-- Sends a message to a client. Returns the number of receivers.
local function tell(client, message)
  return redis.pcall('PUBLISH', 'tenure:wake:' .. client, message)
end

-- Grants a free lock to a waiter whose client receives the message. Returns the number of receivers. LEASE (ms) is the lease until the
-- first renewal. STAMP is the instant, by the waiter's clock, before its last request: the waiter counts the lease from it. Both are
-- returned unchanged.
local function hand_over(who, client, lease, stamp, owner, details, yields_at)
  local token = whole(raise_token())
  local heard = tell(client, who .. ' ' .. token .. ' ' .. stamp .. ' ' .. lease)
  if type(heard) == 'number' and heard > 0 then
    strike(who)
    give(who, owner, token, details, lease, yields_at)
  end
  return heard
end

-- Wakes a waiter so that it asks: for readers, for a lock that has a value, and for leases that are not renewed.
local function call_up(who, client, only)
  local heard = tell(client, who)
  -- For a moment, requests that find the lock free leave it to this waiter.
  if not only and (type(heard) == 'table' or heard > 0) then redis.call('SET', next_key, who, 'PX', 50) end
  return heard
end

-- Calls `act` for each waiter, from the first on, until a client receives the message. Returns that waiter, or nothing if `act` returns
-- nothing. Expired waiters are removed. Waiters whose client does not receive messages at present are skipped, and keep their places. The
-- waiter that asks gets no message.
local function first_to_hear(now, act)
  local at, deaf = 0, {}
  while true do
    local who = redis.call('LINDEX', queue, at)
    if not who or who == grant then return who end
    local until_ms, mode, owner, client, lease, stamp, details = entry_of(who)
    if not until_ms or until_ms <= now then
      strike(who)
    else
      if not deaf[client] then
        local heard = act(who, client, mode, lease, stamp, owner, details)
        -- A client that may not publish still releases: waiters also ask without a message.
        if not heard then return nil end
        if type(heard) == 'table' or heard > 0 then return who end
        deaf[client] = true
      end
      at = at + 1
    end
  end
end

-- Hands a lock that is `free` to the first waiter that can be notified, or else wakes that waiter; with `only`, just for this mode. While
-- the lock is offered to other programs, the message says how long (ms) that lasts. `held` is the text of the lock that was released.
-- Returns the waiter.
local function wake(only, free, held)
  local now = now_ms()
  local offered = redis.call('GET', next_key) == '*' and redis.call('PTTL', next_key)
  local yields_at = not offered and free and handed_until(held, now)
  if free and not offered and not yields_at then
    offer_to_others()
    offered = offered_ms
  end
  return first_to_hear(now, function(who, client, mode, lease, stamp, owner, details)
    if only and mode ~= only then return nil end
    if offered then return tell(client, who .. ' ' .. offered) end
    if free and lease ~= '0' then return hand_over(who, client, lease, stamp, owner, details, yields_at) end
    return call_up(who, client, only)
  end)
end

-- Wakes the waiter that is now the first in the queue: the first asks more often than the others.
local function promote()
  first_to_hear(now_ms(), function(who, client) return tell(client, who) end)
end

-- Returns whether the lock can be handed over: a waiter asks for a lock that has a value.
local function is_free()
  return redis.call('EXISTS', key, value) == 0
end

-- Wakes a waiter that can get the lock in its present state.
local function serve()
  local held = redis.call('GET', key)
  if not held then return wake(nil, is_free()) end
  if string.sub(held, 1, 15) == 'tenure1 many PR' then return wake('PR') end
end
