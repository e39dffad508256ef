-- Change weights set for shard keys, which override the weights of messages. ARGV: ttl, then each shard key with its weight, or ''
-- to remove it.
local weights = prefix .. 'weights'
for i = 2, #ARGV, 2 do
    if ARGV[i + 1] == '' then redis.call('HDEL', weights, ARGV[i]) else redis.call('HSET', weights, ARGV[i], ARGV[i + 1]) end
end
if #ARGV > 1 then touch_at_rest(weights, tonumber(redis.call('HGET', meta, 'ttl') or ARGV[1])) end
return 1
