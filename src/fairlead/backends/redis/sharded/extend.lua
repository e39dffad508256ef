-- Extend the claims of a consumer: set the idle time of its messages to 0. Do not change messages of
-- other consumers. ARGV: group, consumer, then stream and entry of each message. Return for each
-- message 1 if the consumer has claimed it, else 0.
local group, consumer = ARGV[1], ARGV[2]
local claimed = {}
for i = 3, #ARGV, 2 do
    local stream, id = ARGV[i], ARGV[i + 1]
    local is_ours = is_held(stream, group, consumer, id)
    if is_ours then redis.call('XCLAIM', key_of(stream), group_of(stream, group), consumer, 0, id, 'JUSTID') end
    claimed[#claimed + 1] = is_ours and 1 or 0
end
return claimed
