-- Most waiters are in the client that releases: a message to itself comes sooner with the answer. Whether the waiter's place has ended is not
-- checked: a client takes its waiters out of the queue when they go, and one that it could not take out has the lock for one short lease.
if freed and here and (string.sub(held, -2) ~= '  ' or redis.call('EXISTS', 'tenure:value:' .. key) == 0) then
  local yields_at = handed_until(held, now_ms())
  -- First what needs no memory: once a script has changed something, Redis lets it use memory that it does not have.
  local who = yields_at and redis.call('LPOP', queue)
  local _, _, owner, client, lease, stamp, details = entry_of(who or '')
  if client == here and lease ~= '0' then
    redis.call('HDEL', waiters, who)
    local token = whole(raise_token())
    give(who, owner, token, details, lease, yields_at)
    return who .. ' ' .. token .. ' ' .. stamp .. ' ' .. lease
  end
  -- It is the turn of another client. A list that was empty meanwhile has lost its ttl.
  if who and redis.call('LPUSH', queue, who) == 1 then redis.call('PEXPIRE', queue, 2 * kept) end
end
