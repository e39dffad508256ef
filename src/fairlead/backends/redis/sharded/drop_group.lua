-- Remove a group with its claims, and the messages that only this group had not acknowledged. ARGV:
-- group. The script reads every message once. Return the number of removed messages.
local group = ARGV[1]
local count = tonumber(redis.call('HGET', meta, 'streams') or 0)
redis.call('SREM', prefix .. 'groups', group)
redis.call('HDEL', meta, 'offset:' .. group, 'empty:' .. group, 'virtual:' .. group, 'tidied:' .. group, 'indexed:' .. group, 'reclaim:' .. group)
for _, kind in ipairs({'passes:', 'tenants:', 'waiting:', 'returned:'}) do redis.call('UNLINK', prefix .. kind .. group) end
local others = redis.call('SCARD', prefix .. 'groups')
local dropped = 0
for stream = 0, count - 1 do
    local key = key_of(stream)
    local before = length(key)
    if redis.call('EXISTS', key) == 1 then  -- an empty stream keeps its groups too
        redis.call('XGROUP', 'DESTROY', key, group)
        if others > 0 then
            for _, entry in ipairs(redis.call('XRANGE', key, '-', '+')) do
                if is_settled(tostring(stream), entry[1]) then drop(tostring(stream), entry[1]) end
            end
        end
        dropped = dropped + before - length(key)
    end
end
return dropped
