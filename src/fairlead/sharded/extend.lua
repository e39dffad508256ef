-- Extend the claims of a consumer: set the idle time of its messages to 0. Do not change messages of
-- other consumers. ARGV: group, consumer, then stream and entry of each message. Return for each
-- message 1 if the consumer has claimed it, else 0.
local group, consumer = ARGV[1], ARGV[2]
local ids_of, streams = by_stream(ARGV, 3)
local holders_in = {}
for _, stream in ipairs(streams) do
    local holders, held = holders_of(stream, group, ids_of[stream], consumer) or {}, {}
    for _, id in ipairs(ids_of[stream]) do
        if holders[id] then held[#held + 1] = id end
    end
    held[#held + 1] = 'JUSTID'
    if #held > 1 then redis.call('XCLAIM', key_of(stream), group_of(stream, group), consumer, 0, unpack(held)) end
    holders_in[stream] = holders
end
local claimed = {}
for i = 3, #ARGV, 2 do claimed[#claimed + 1] = holders_in[ARGV[i]][ARGV[i + 1]] and 1 or 0 end
return claimed
