-- Describe what fills the queue. ARGV: group or '', greatest length of each list. Return a list for each of the groups; the
-- consumers of the group, with the messages that each holds and the time (ms) of its last read or ''; the longest streams; and
-- the tenants with most messages in the index of the group, with the weight that was set or ''. Before each list is the number
-- of all that were found, and before these four whether all were looked at (1) or only the first ones (0).
local group, most = ARGV[1], tonumber(ARGV[2])
local MOST_SEEN = 1000  -- consumers, over all streams
local MOST_TENANTS = 500
local is_whole = true

local function cut(found, is_before)
    table.sort(found, is_before)
    return #found, {unpack(found, 1, math.min(#found, most))}
end

local function heavier(one, other)
    if one[2] ~= other[2] then return one[2] > other[2] end
    return one[1] < other[1]
end

local streams, held, seen = {}, {}, 0
for _, stream in ipairs(all_streams(tonumber(redis.call('HGET', meta, 'streams') or 0))) do
    local entries = length(key_of(stream))
    if entries > 0 then
        streams[#streams + 1] = {stream, entries}
        local name = group_of(stream, group)
        for _, each in ipairs(group ~= '' and groups_of(key_of(stream)) or {}) do
            if each.name == name then
                seen = seen + each.consumers
                local holders = seen <= MOST_SEEN and redis.call('XPENDING', key_of(stream), name)[4] or {}
                for _, holder in ipairs(holders) do held[holder[1]] = (held[holder[1]] or 0) + tonumber(holder[2]) end
                if seen > MOST_SEEN then is_whole = false end
            end
        end
    end
end
held[WAITING], held[RETURNED] = nil, nil

local consumers, last_reads = {}, prefix .. 'consumers:' .. group
local recent = redis.call('ZREVRANGE', last_reads, 0, MOST_SEEN - 1, 'WITHSCORES')
for i = 1, #recent, 2 do
    consumers[#consumers + 1] = {recent[i], held[recent[i]] or 0, recent[i + 1]}
    held[recent[i]] = nil
end
for consumer, messages in pairs(held) do consumers[#consumers + 1] = {consumer, messages, ''} end

local tenants, waiting = {}, prefix .. 'waiting:' .. group
for _, tenant in ipairs(redis.call('ZRANGE', prefix .. 'tenants:' .. group, 0, MOST_TENANTS - 1)) do
    local start = of_tenant(tenant)
    local messages = redis.call('ZLEXCOUNT', waiting, '[' .. start, '(' .. start .. ':')
    tenants[#tenants + 1] = {tenant, messages, redis.call('HGET', prefix .. 'weights', tenant) or ''}
end
is_whole = is_whole and #recent < 2 * MOST_SEEN and #tenants < MOST_TENANTS

local groups, all_groups = {}, redis.call('SMEMBERS', prefix .. 'groups')
for _, each in ipairs(all_groups) do groups[#groups + 1] = {each, 0} end
local group_count, first_groups = cut(groups, heavier)
local consumer_count, first_consumers = cut(consumers, heavier)
local stream_count, first_streams = cut(streams, heavier)
local tenant_count, first_tenants = cut(tenants, heavier)
return {
    is_whole and 1 or 0, group_count, first_groups, consumer_count, first_consumers, stream_count, first_streams,
    tenant_count, first_tenants
}
