-- Most waiters are in the client that releases: the answer reaches such a waiter sooner than a message. The script does not check whether
-- the waiter's place has expired. A client removes its waiters from the queue when they end, and one that it could not remove has the lock
-- for one short lease.
if freed and here and (string.sub(held, -2) ~= '  ' or redis.call('EXISTS', 'tenure:value:' .. key) == 0) then
  local yields_at = handed_until(held, now_ms())
  -- Commands that need no memory run first: once a script has written, Redis no longer refuses its commands for lack of memory.
  local who = yields_at and redis.call('LPOP', queue)
  local _, _, owner, client, lease, stamp, details = entry_of(who or '')
  if client == here and lease ~= '0' then
    redis.call('HDEL', waiters, who)
    local token = whole(raise_token())
    give(who, owner, token, details, lease, yields_at)
    return who .. ' ' .. token .. ' ' .. stamp .. ' ' .. lease
  end
  -- The next waiter is in another client. A list that was empty in between has lost its TTL.
  if who and redis.call('LPUSH', queue, who) == 1 then redis.call('PEXPIRE', queue, 2 * kept) end
end
