-- Most who wait do so beside the one who releases, in one client: what it publishes to itself comes sooner with the answer. Its connection
-- has been through rise.lua, so the counter need not be compared with the date. Nor is the time asked for until which a place is kept: a
-- client takes those out of the queue who have gone, and one that it could not take out has the lock for one short lease.
--
-- With MOST, so many who stand behind it are told, too, and there is a token for each, the next one for the first of them: those of its client to whom
-- it passes the lock on by itself. For Redis they wait until it hears more.
if freed and here ~= '' and (string.sub(held, -2) ~= '  ' or redis.call('EXISTS', 'tenure:value:' .. key) == 0) then
  -- First what needs no memory: once a script has changed something, Redis lets it use memory that it does not have.
  local who = redis.call('LPOP', queue)
  local _, _, owner, client, lease, stamp, details = entry_of(who or '')
  if client == string.sub(here, 1, 32) and lease ~= '0' then
    redis.call('HDEL', waiters, who)
    local token = whole(raise_token())
    give(who, owner, token, details, lease)
    local message = who .. ' ' .. token .. ' ' .. stamp .. ' ' .. lease
    local most = tonumber(string.sub(here, 34))
    local behind = most and redis.call('LRANGE', queue, '0', most - 1)
    if not behind or not behind[1] then return message end
    redis.call('INCRBY', 'tenure:token', #behind)
    return message .. ' ' .. table.concat(behind, ' ')
  end
  -- It is the turn of another client. A list that was empty meanwhile has lost its ttl.
  if who and redis.call('LPUSH', queue, who) == 1 then redis.call('PEXPIRE', queue, 2 * kept) end
end
