-- Most who wait do so beside the one who releases, in one client: what it publishes to itself comes sooner with the answer. Its connection
-- has been through rise.lua, so the counter need not be compared with the date.
if freed and here and redis.call('EXISTS', 'tenure:value:' .. key) == 0 then
  local who = redis.call('LINDEX', queue, '0') or ''
  local until_ms, client, lease, stamp, _, owner, details = entry_of(who)
  if client == here and lease ~= '0' and tonumber(until_ms) > now_ms() then
    local token = whole(raise_token())
    give(who, owner, token, details, lease)
    return who .. ' ' .. token .. ' ' .. stamp .. ' ' .. lease
  end
end
