-- Restart the idle time of messages that a consumer still works on; messages of other consumers
-- stay as they are. ARGV: group, consumer, then stream and entry of each. Returns 1 or 0 for each:
-- whether it belongs to this consumer.
local group, consumer = ARGV[1], ARGV[2]
local answers = {}
for i = 3, #ARGV, 2 do
    local stream, id = ARGV[i], ARGV[i + 1]
    local is_ours = is_held(stream, group, consumer, id)
    if is_ours then redis.call('XCLAIM', key_of(stream), group_of(stream, group), consumer, 0, id, 'JUSTID') end
    answers[#answers + 1] = is_ours and 1 or 0
end
return answers
