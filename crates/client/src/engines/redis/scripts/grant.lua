-- The lock's key, and the grant that the script is about.
local key, grant = KEYS[1], ARGV[1]
