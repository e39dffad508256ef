-- Keep or drop incidents. KEYS: hash of the incidents, zset of them all by id, zset of the undelivered ones by the time of the
-- next delivery, hash of counts. ARGV for each incident: its key, the field of its count, its id, time of the next delivery or ''
-- if it is delivered, its text or '' to drop it.
local entries, ids, due, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
for i = 1, #ARGV, 5 do
  local key, counted, id, at, text = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  if text ~= '' then
    if redis.call('HSET', entries, key, text) == 1 then
      redis.call('ZADD', ids, id, key)
      redis.call('HINCRBY', counts, counted, 1)
    end
    if at == '' then redis.call('ZREM', due, key) else redis.call('ZADD', due, at, key) end
  elseif redis.call('HDEL', entries, key) == 1 then
    redis.call('ZREM', ids, key)
    redis.call('ZREM', due, key)
    if redis.call('HINCRBY', counts, counted, -1) <= 0 then redis.call('HDEL', counts, counted) end
  end
end
