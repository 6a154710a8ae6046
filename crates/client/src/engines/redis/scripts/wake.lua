-- Whose turn it is.

-- Whether it stood there. Most who ask this did not, and a list has to be searched.
local function leave_queue(who)
  local stood = redis.call('HDEL', waiters, who) == 1
  if stood then redis.call('LREM', queue, '1', who) end
  return stood
end

-- Tells a client something; the number of those who heard it.
local function tell(client, message)
  return redis.pcall('PUBLISH', 'tenure:wake:' .. client, message)
end

-- Gives the lock, which is free, to a waiter that hears of it; the number of clients that did. LEASE (ms) is what it has until it renews. STAMP
-- is the instant, by the waiter's clock, before it last asked: the waiter counts the lease from then on. Either is given back as it came.
local function hand_over(who, client, lease, stamp, owner, details, yields_at)
  local token = whole(raise_token())
  local heard = tell(client, who .. ' ' .. token .. ' ' .. stamp .. ' ' .. lease)
  if type(heard) == 'number' and heard > 0 then
    strike(who)
    give(who, owner, token, details, lease, yields_at)
  end
  return heard
end

-- Tells a waiter to ask: for readers, for a lock that has a value, and for leases that nobody renews.
local function call_up(who, client, only)
  local heard = tell(client, who)
  -- It has a moment to come before a request that finds the lock free may take it.
  if not only and (type(heard) == 'table' or heard > 0) then redis.call('SET', next_key, who, 'PX', 50) end
  return heard
end

-- Calls `act` for each waiter from the first on, until a client hears it: who that is. Nothing, if `act` gives nothing. Waiters whose time is
-- over are taken out. Waiters whose client does not hear just now are passed over, and keep their places. The waiter that asks is not told.
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
        -- A client that may not publish still releases: waiters look by themselves.
        if not heard then return nil end
        if type(heard) == 'table' or heard > 0 then return who end
        deaf[client] = true
      end
      at = at + 1
    end
  end
end

-- Hands the lock to the first waiter that hears it if it is `free`, or tells that one to ask; with `only`, if it asks for that mode. While the lock is
-- offered to others, the waiter is told how long (ms) that lasts. `held` is the text of the lock that was released. Who was told.
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

-- Tells the waiter that is the first in line now to ask: the first looks at the lock more often than the others.
local function promote()
  first_to_hear(now_ms(), function(who, client) return tell(client, who) end)
end

-- Whether it can be handed over: who gets a value is to ask.
local function is_free()
  return redis.call('EXISTS', key, value) == 0
end

-- Wakes a waiter that can get the lock as it is now.
local function serve()
  local held = redis.call('GET', key)
  if not held then return wake(nil, is_free()) end
  if string.sub(held, 1, 15) == 'tenure1 many PR' then return wake('PR') end
end
