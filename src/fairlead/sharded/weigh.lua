-- Set the weight of a shard key, which overrides the weights of its messages. ARGV: shard key, weight
-- or '' to remove it, ttl.
local weights = prefix .. 'weights'
if ARGV[2] == '' then return redis.call('HDEL', weights, ARGV[1]) end
redis.call('HSET', weights, ARGV[1], ARGV[2])
touch_at_rest(weights, tonumber(redis.call('HGET', meta, 'ttl') or ARGV[3]))
return 1
