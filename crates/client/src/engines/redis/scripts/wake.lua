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

-- Gives the lock, which is free, to one who waits, if it hears of it; the number of clients that did. LEASE (ms) is what it has until it
-- renews. STAMP is the instant, by its own clock, before it last asked: from then on it counts that lease, so it need not ask again. Either
-- is given back to it as it came.
local function hand_over(who, client, lease, stamp, owner, details, now)
  local token = whole(raise_token(now * 1000))
  local heard = tell(client, who .. ' ' .. token .. ' ' .. stamp .. ' ' .. lease)
  if type(heard) == 'number' and heard > 0 then
    strike(who)
    give(who, owner, token, details, lease)
  end
  return heard
end

-- Tells one who waits to ask: for readers, for a lock that has a value, and for leases that nobody renews.
local function call_up(who, client, only)
  local heard = tell(client, who)
  -- It has a moment to come before whoever finds the lock free may take it.
  if not only and (type(heard) == 'table' or heard > 0) then
    redis.call('SET', 'tenure:next:' .. key, who, 'PX', 50)
  end
  return heard
end

-- Hands the lock to the first who hears it if it is `free`, or tells it to ask; with `only`, if it asks for that mode. Who that is. Those
-- whose time is over are taken out; those whose client does not hear just now are passed over, and keep their places. Whoever asks by itself
-- is not told.
local function wake(only, free)
  local at, now, deaf = 0, now_ms(), {}
  while true do
    local who = redis.call('LINDEX', queue, at)
    if not who or who == grant then return who end
    local until_ms, mode, owner, client, lease, stamp, details = entry_of(who)
    if not until_ms or until_ms <= now then
      strike(who)
    else
      if only and mode ~= only then return nil end
      if not deaf[client] then
        local heard
        if free and lease ~= '0' then
          heard = hand_over(who, client, lease, stamp, owner, details, now)
        else
          heard = call_up(who, client, only)
        end
        -- Whoever may not publish still lets go: those who wait look by themselves.
        if type(heard) == 'table' or heard > 0 then return who end
        deaf[client] = true
      end
      at = at + 1
    end
  end
end

-- Whether it can be handed over: who gets a value is to ask.
local function is_free()
  return redis.call('EXISTS', key, value) == 0
end

-- Wakes whoever can get the lock as it is now.
local function serve()
  local held = redis.call('GET', key)
  if not held then return wake(nil, is_free()) end
  if string.sub(held, 1, 15) == 'tenure1 many PR' then return wake('PR') end
end
