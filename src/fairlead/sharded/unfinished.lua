-- Count unfinished messages in one atomic script, because a retry moves between streams and `later`.
-- ARGV: the beginning of the tickets of retries, as retry/. Return the numbers of messages, retries for later, and dead letters.
local messages = 0
for _, stream in ipairs(all_streams(tonumber(redis.call('HGET', meta, 'streams') or 0))) do
    messages = messages + length(key_of(stream))
end
local retries = tonumber(redis.call('HGET', meta, 'later:' .. ARGV[1]) or 0)
retries = math.max(0, math.min(retries, redis.call('ZCARD', later)))  -- in case that the key was lost
return {messages, retries, length(prefix .. 'dead')}
