-- Acknowledge messages for a group. ARGV: group, then stream and entry of each message. Return the
-- number of these messages that were claimed by the group and not acknowledged before.
local group, acknowledged = ARGV[1], 0
local has_index = redis.call('EXISTS', prefix .. 'tenants:' .. group) == 1
local ids_of, streams = by_stream(ARGV, 2)
for _, stream in ipairs(streams) do
    local ids = ids_of[stream]
    local holders = (has_index or #ids > 1) and holders_of(stream, group, ids)
    if holders then
        for _, id in ipairs(ids) do
            if holders[id] == WAITING then holders[id] = nil end  -- nobody has read it
        end
        ids = those_held(ids, holders)
        if #ids > 0 then acknowledged = acknowledged + settle(stream, group, ids) end
    else
        for _, id in ipairs(ids) do acknowledged = acknowledged + settle(stream, group, {id}) end
    end
end
return acknowledged
