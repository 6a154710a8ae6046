-- The value: a letter, then the bytes. The letter says whether one who may write them holds the lock, and whether one who
-- did has died instead of letting go.
--
--             nobody holds   a writer holds
--   sure      c              o
--   in doubt  D              d
local value = 'tenure:value:' .. key

-- Whether there is one.
local function change_value(from_to)
  local state = redis.call('GETRANGE', value, '0', '0')
  if from_to[state] then redis.call('SETRANGE', value, '0', from_to[state]) end
  return state ~= ''
end

-- A writer has got the lock. One that had it before and did not let go has died.
local function open_value() change_value({ c = 'o', D = 'd', o = 'd' }) end
-- The last writer has let go.
local function close_value() return change_value({ o = 'c', d = 'D' }) end
-- One of several writers has died.
local function doubt_value() change_value({ o = 'd' }) end
