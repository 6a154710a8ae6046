-- Whose turn it is.

-- Tells a client something; the number of those who heard it. What is for the client that asks just now (`here`) comes with the answer to
-- it instead, which is sooner there.
local function tell(client, message, here)
  if client == here then return 1 end
  return redis.pcall('PUBLISH', 'tenure:wake:' .. client, message)
end

-- Gives the lock, which is free, to one who waits, if it hears of it; the number of clients that did, and the message. LEASE (ms) is what it
-- has until it renews. STAMP is the instant, by its own clock, before it last asked: from then on it counts that lease, so it need not ask
-- again. Either is given back to it as it came.
local function hand_over(who, client, lease, stamp, owner, details, now, here)
  local token = whole(raise_token(not here and now * 1000))
  local message = who .. ' ' .. token .. ' ' .. stamp .. ' ' .. lease
  local heard = tell(client, message, here)
  if type(heard) == 'number' and heard > 0 then
    local text = 'tenure1 ' .. who .. ' ' .. owner .. ' ' .. token .. ' EX ' .. details
    redis.call('SET', key, marked(text), 'NX', 'PX', lease)
    leave_queue(who)
  end
  return heard, message
end

-- Tells one who waits to ask: for readers, for a lock that has a value, and for leases that nobody renews.
local function call_up(who, client, only, here)
  local heard = tell(client, who, here)
  -- It has a moment to come before whoever finds the lock free may take it.
  if not only and (type(heard) == 'table' or heard > 0) then
    redis.call('SET', 'tenure:next:' .. key, who, 'PX', 50)
  end
  return heard, who
end

-- Hands the lock to the first who hears it if it is `free`, or tells it to ask; with `only`, if it asks for that mode. Who that is, and the
-- message, if it is one of the client's that asks (`here`). Those whose time is over are taken out; those whose client does not hear just now
-- are passed over, and keep their places. Whoever asks by itself is not told.
local function wake(only, free, here)
  -- A text, since Redis takes long to write numbers down.
  local at, now, deaf = '0', nil, {}
  while true do
    local who = redis.call('LINDEX', queue, at)
    if not who or who == grant then return who end
    local until_ms, client, lease, stamp, mode, owner, details =
      string.match(redis.call('HGET', waiters, who) or '', '^(%d+) (%S+) (%d+) (%d+) (%S+) (%S+) (.*)$')
    now = now or now_ms()
    if not until_ms or tonumber(until_ms) <= now then
      leave_queue(who)
    else
      if only and mode ~= only then return nil end
      if not deaf[client] then
        local heard, message
        if free and lease ~= '0' then
          heard, message = hand_over(who, client, lease, stamp, owner, details, now, here)
        else
          heard, message = call_up(who, client, only, here)
        end
        -- Whoever may not publish still lets go: those who wait look by themselves.
        if type(heard) == 'table' or heard > 0 then return who, client == here and message end
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
