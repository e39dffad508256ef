-- List messages that a consumer has claimed but does not know, because a response was lost. ARGV:
-- group, consumer, then stream and entry of each message that it knows. Return the time (ms), then
-- {stream, id, deliveries, fields} of each message.
local group, consumer = ARGV[1], ARGV[2]
local known, found = {}, {}
for i = 3, #ARGV, 2 do known[ARGV[i] .. '/' .. ARGV[i + 1]] = true end
for _, stream in ipairs(all_streams(tonumber(redis.call('HGET', meta, 'streams') or 0))) do
    local key, its_group = key_of(stream), group_of(stream, group)
    local pending = redis.pcall('XPENDING', key, its_group, '-', '+', 10000, consumer)
    if not pending.err then  -- otherwise no consumer of the group has read here
        for _, each in ipairs(pending) do
            local entry = not known[stream .. '/' .. each[1]] and redis.call('XRANGE', key, each[1], each[1])[1]
            if entry then found[#found + 1] = {stream, each[1], each[4], entry[2]} end
        end
    end
end
return {integer(now), found}
