-- The lock's key, and the grant of the call.
local key, grant = KEYS[1], ARGV[1]
