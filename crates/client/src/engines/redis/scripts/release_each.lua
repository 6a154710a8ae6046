-- Locks of which each has one holder, and nobody else has to do with it: those are freed, all at once. For the rest there is release.lua.
--
-- ARGV: the grants, one for each key. For each of them 1 if it was freed, and 0 if not. Nothing stops it half-way.
local freed = {}
for nth, grant in ipairs(ARGV) do
  local key = KEYS[nth]
  local held = redis.pcall('GET', key)
  local alone = type(held) == 'string' and string.find(held, grant, 9, true) == 9 and string.sub(held, -1) ~= ' '
  freed[nth] = alone and redis.pcall('DEL', key) == 1 and '1' or '0'
end
return table.concat(freed)
