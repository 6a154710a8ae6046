-- The value: a letter, then the bytes. The letter says whether a writer holds the lock, and whether a writer has died without a release.
--
--             no writer      a writer holds
--   sure      c              o
--   in doubt  D              d
local value = 'tenure:value:' .. key

-- Changes the letter. Returns whether there is a value.
local function change_value(from_to)
  local state = redis.call('GETRANGE', value, '0', '0')
  if from_to[state] then redis.call('SETRANGE', value, '0', from_to[state]) end
  return state ~= ''
end

-- A writer got the lock. If the letter says that a writer holds it already, that one has died.
local function open_value() change_value({ c = 'o', D = 'd', o = 'd' }) end
-- The last writer has released the lock.
local function close_value() return change_value({ o = 'c', d = 'D' }) end
-- One of several writers has died.
local function doubt_value() change_value({ o = 'd' }) end
