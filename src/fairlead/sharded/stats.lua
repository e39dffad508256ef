-- Count messages in one atomic script. ARGV: group, or '' to count messages only. Return the number of
-- streams, messages, messages claimed by the group, messages waiting for the group, dead letters,
-- cordoned messages, messages for later, and the time (ms) at which the oldest waiting message was
-- written.
local group = ARGV[1]
local count = tonumber(redis.call('HGET', meta, 'streams') or 0)
local messages, pending, waiting, oldest = 0, 0, 0, nil
local is_kept_for_others = redis.call('SCARD', prefix .. 'groups') > 1

local has_index = redis.call('EXISTS', prefix .. 'tenants:' .. group) == 1

local function see_id(id)
    local at = tonumber(string.match(id, '^%d+'))
    if not oldest or at < oldest then oldest = at end
end

local function see(key, after)
    local first = redis.call('XRANGE', key, '(' .. after, '+', 'COUNT', 1)[1]
    if first then see_id(first[1]) end
end

for _, stream in ipairs(all_streams(count)) do
    local key = key_of(stream)
    local entries, ours = length(key), nil
    local groups = entries > 0 and groups_of(key) or {}
    local is_only = #groups == 1 and (stream == 'default' or not is_kept_for_others)
    messages = messages + (is_only and groups[1].pending + unread(entries, groups[1]) or entries)
    if group ~= '' and entries > 0 then
        for _, each in ipairs(groups) do
            if each.name == group_of(stream, group) then ours = each end
        end
        if not ours then
            waiting = waiting + entries
            see(key, '0-0')
        else
            pending = pending + ours.pending
            see(key, ours.last)
            local first = has_index and redis.call('XPENDING', key, ours.name, '-', '+', 1, WAITING)[1]
            if first then see_id(first[1]) end
            waiting = waiting + unread(entries, ours)
        end
    end
end
-- Consumers hold the messages that wait in the index, by the name of nobody.
local in_index = has_index and math.min(pending, redis.call('ZCARD', prefix .. 'waiting:' .. group)) or 0
pending, waiting = pending - in_index, waiting + in_index
return {count, messages, pending, waiting, length(prefix .. 'dead'), length(prefix .. 'cordoned'), redis.call('ZCARD', later), oldest or ''}
