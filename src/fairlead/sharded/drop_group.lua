-- Remove a group with its claims, and the messages that only this group had not acknowledged. ARGV:
-- group, number of the stream to begin with. Return the number of removed messages, and the number of the stream with which the
-- next run goes on, or -1.
local group, first = ARGV[1], tonumber(ARGV[2])
local count = tonumber(redis.call('HGET', meta, 'streams') or 0)
redis.call('SREM', prefix .. 'groups', group)
for _, field in ipairs({'offset:', 'empty:', 'looked:', 'virtual:', 'lowered:', 'indexed:', 'reclaim:', 'round:'}) do
    redis.call('HDEL', meta, field .. group)
end
for _, kind in ipairs({'passes:', 'tenants:', 'waiting:', 'returned:', 'consumers:'}) do redis.call('UNLINK', prefix .. kind .. group) end
local others = redis.call('SCARD', prefix .. 'groups')
local dropped, left, bytes = 0, MOST, 0

local function settle_here(stream, key, id)
    redis.call('XACK', key, group, id)
    if others > 0 and is_settled(stream, id, group) then
        drop(stream, {id})
        dropped = dropped + 1
    end
    left = left - 1
end

-- Acknowledge what the group has not acknowledged, its claims and then what it has not read. Return whether that was all.
local function ack_all(stream, key)
    local ours = nil
    for _, each in ipairs(groups_of(key)) do
        if each.name == group then ours = each end
    end
    if not ours and others == 0 then return true end
    if not ours then
        redis.call('XGROUP', 'CREATE', key, group, '0')  -- it has read other streams, and not yet this one
        ours = {last = '0-0'}
    end
    local most = left
    local claims = redis.call('XPENDING', key, group, '-', '+', most)
    for _, each in ipairs(claims) do settle_here(stream, key, each[1]) end
    if #claims == most then return false end
    while others > 0 do
        local entry = left > 0 and bytes < MOST_BYTES and redis.call('XRANGE', key, '(' .. ours.last, '+', 'COUNT', 1)[1]
        if not entry then break end
        ours.last, bytes = entry[1], bytes + bytes_of(entry[2])
        redis.call('XGROUP', 'SETID', key, group, ours.last)
        settle_here(stream, key, ours.last)
    end
    if left <= 0 or bytes >= MOST_BYTES then return false end
    redis.call('XGROUP', 'DESTROY', key, group)
    return true
end

for stream = first, count - 1 do
    local key = key_of(stream)
    length(key)
    -- An empty stream keeps its groups too.
    if redis.call('EXISTS', key) == 1 and not ack_all(tostring(stream), key) then return {dropped, stream} end
end
return {dropped, -1}
