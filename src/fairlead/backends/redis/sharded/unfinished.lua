-- Count unfinished messages in one atomic script, because a retry moves between streams and `later`.
-- ARGV: prefix of the tickets of retries; the number of messages at which to stop, or nothing. Return
-- the numbers of messages, retries for later, and dead letters.
local enough = tonumber(ARGV[2]) or math.huge
local messages = 0
for _, stream in ipairs(all_streams(tonumber(redis.call('HGET', meta, 'streams') or 0))) do
    messages = messages + length(key_of(stream))
end
local retries, from = 0, 0
while messages + retries < enough do
    local tickets = redis.call('ZRANGE', later, from, from + 999)
    for _, ticket in ipairs(tickets) do
        if string.sub(ticket, 1, #ARGV[1]) == ARGV[1] then retries = retries + 1 end
    end
    from = from + #tickets
    if #tickets < 1000 then break end
end
return {messages, retries, length(prefix .. 'dead')}
