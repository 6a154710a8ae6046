-- The text in a lock's key:
--
--   tenure1 GRANT OWNER TOKEN MODE DETAILS    one holder
--   tenure1 many MODE OWNER TOKEN             several: see members.lua
--
-- A space at the end is a mark: the lock may have waiters. Two spaces mean that it may also have a value. Without a mark, the release need
-- not look for either.
-- TOKEN is `?` in a lock that was taken without a script, until its first renewal records the token, and `-` where there is none.
-- Any other text is a lock of another program. The other keys are named in the scripts and not passed in: they follow from this one, and
-- each key that is passed costs half as much as a call.
--
-- A master that has become a replica still answers reads, and does not know the locks of the new master. So the answer "not held" follows a
-- write that changes nothing: a replica refuses the write, and the client then looks for the master.
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

-- Returns the text with both marks.
local function marked(text)
  while string.sub(text, -2) ~= '  ' do text = text .. ' ' end
  return text
end

-- Returns the text with this token, if it has the placeholder `?`.
local function noted(held, token)
  local before, after = string.match(held, '^(tenure1 %S+ %S+) %? (.*)$')
  return before and before .. ' ' .. token .. ' ' .. after
end
