-- Those who had the lock one after the other stand in the queue, but for the first: it was taken out when the lock was handed to it.
if ARGV[3] then
  strike(grant)
  for at = 4, #ARGV do strike(ARGV[at]) end
end
