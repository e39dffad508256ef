-- Change one field of a hash by compare-and-set. KEYS: the hash. ARGV: field, expected value ('' for
-- none), new value ('' removes the field). Return 1 if the field had the expected value.
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return 1
