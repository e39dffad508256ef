-- Acknowledge messages for a group. ARGV: group, then stream and entry of each message. Return the
-- number of these messages that were claimed by the group and not acknowledged before.
local group, acknowledged = ARGV[1], 0
local has_index = redis.call('EXISTS', prefix .. 'tenants:' .. group) == 1
for i = 2, #ARGV, 2 do
    local stream, id = ARGV[i], ARGV[i + 1]
    local is_unread = has_index and is_held(stream, group, WAITING, id)
    if not is_unread then acknowledged = acknowledged + settle(stream, group, id) end
end
return acknowledged
