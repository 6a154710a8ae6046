-- Draws a fencing token, from one sequence for all locks of a database. The sequence is a stream that keeps no entries: Redis gives each
-- entry an ID above the last one and not below its date, and remembers the last ID. So tokens rise even if the date is set back, or if
-- Redis has lost them or has loaded older data. The ID `MS-N` is the token MS * 1000 + N.
local function raise_token()
  local sequence = 'tenure:sequence'
  local ms, n = string.match(redis.call('XADD', sequence, 'MAXLEN', '0', '*', 't', '1'), '^(%d+)%-(%d+)$')
  if tonumber(n) < 1000 then return ms * 1000 + n end
  -- The date is behind the last ID, and N has reached 1000: that token is the first one of the next millisecond.
  ms = ms + 1
  redis.call('XADD', sequence, 'MAXLEN', '0', string.format('%d-0', ms), 't', '1')
  return ms * 1000
end
