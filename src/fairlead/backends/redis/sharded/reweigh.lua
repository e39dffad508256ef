-- Replace all weights set for shard keys, which override the weights of messages. ARGV: ttl, then
-- each shard key with its weight.
local weights = prefix .. 'weights'
redis.call('DEL', weights)
for i = 2, #ARGV, 2 do redis.call('HSET', weights, ARGV[i], ARGV[i + 1]) end
if #ARGV > 1 then touch_at_rest(weights, tonumber(redis.call('HGET', meta, 'ttl') or ARGV[1])) end
return 1
