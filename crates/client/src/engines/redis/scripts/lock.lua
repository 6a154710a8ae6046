-- What all scripts know of the text in a lock's key:
--
--   tenure1 GRANT OWNER TOKEN MODE DETAILS    one holder
--   tenure1 many MODE OWNER TOKEN             several: see members.lua
--
-- A space at the end is a mark: it says that somebody may wait for the lock, and two say that it may have a value, too. Where they are
-- missing, whoever releases the lock need not look for either.
-- TOKEN is `?` in a lock that was taken without a script, until its first renewal writes it down, and `-` where there is none.
-- Anything else is somebody else's lock. The other keys are named in the scripts and not passed in: they follow from this one, and
-- each that is passed costs half as much as a call.
--
-- A master that has become a replica goes on answering what needs no write, and does not know the locks of the new master. So "not held" is
-- said behind a write that changes nothing: a replica refuses that, and the client then looks for the master.
local function not_held(answer)
  redis.call('DEL', 'tenure:nothing')
  return answer
end

local function is_mine(held)
  return held and string.find(held, grant, 9, true) == 9
end

local function is_many(held)
  return held and string.sub(held, 1, 13) == 'tenure1 many '
end

-- The text with both marks.
local function marked(text)
  while string.sub(text, -2) ~= '  ' do text = text .. ' ' end
  return text
end

-- The text with the token in it, if it is one in which it is to be written down.
local function noted(held, token)
  local before, after = string.match(held, '^(tenure1 %S+ %S+) %? (.*)$')
  return before and before .. ' ' .. token .. ' ' .. after
end
