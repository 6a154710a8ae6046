-- Most who wait do so beside the one who releases, in one client: what it publishes to itself comes sooner with the answer. Its connection
-- has been through rise.lua, so the counter need not be compared with the date. Nor is the time asked for until which a place is kept: a
-- client takes those out of the queue who have gone, and one that it could not take out has the lock for one short lease.
if freed and here and (string.sub(held, -2) ~= '  ' or redis.call('EXISTS', 'tenure:value:' .. key) == 0) then
  -- First what needs no memory: once a script has changed something, Redis lets it use memory that it does not have.
  local who = redis.call('LPOP', queue)
  local _, _, owner, client, lease, stamp, details = entry_of(who or '')
  if client == here and lease ~= '0' then
    redis.call('HDEL', waiters, who)
    local token = whole(raise_token())
    give(who, owner, token, details, lease)
    return who .. ' ' .. token .. ' ' .. stamp .. ' ' .. lease
  end
  -- It is the turn of another client. A list that was empty meanwhile has lost its ttl.
  if who and redis.call('LPUSH', queue, who) == 1 then redis.call('PEXPIRE', queue, 2 * kept) end
end
