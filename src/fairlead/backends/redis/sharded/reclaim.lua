-- Claim messages for a consumer whose claims by other consumers are too old. ARGV: group, consumer,
-- least age of a claim (ms), greatest number of messages, deliveries after which a message becomes a
-- dead letter. Return the time (ms), then {stream, id, deliveries, fields} of each message.
-- index.lua comes before this script.
local min_idle, wanted = ARGV[3], tonumber(ARGV[4])
local max_deliveries = tonumber(ARGV[5])
local returned = prefix .. 'returned:' .. group
local tidied = 'tidied:' .. group
local known = redis.call('HMGET', meta, 'streams', tidied, 'reclaim:' .. group)
local streams = all_streams(tonumber(known[1] or 0))
redis.call('HDEL', meta, '')  -- a full server lets a script write whose first write needs no memory
local silent = math.max(tonumber(min_idle), 3600000)
local since_tidied = now - tonumber(known[2] or 0)
local is_time_to_tidy = since_tidied >= silent or since_tidied < 0  -- a clock may be set back
-- Limits of one run of the script, so that it does not hold the server for long: claims, and consumers of a stream.
local MOST_CLAIMS, MOST_HOLDERS = 1000, 500
local looked_at = 0
local claimed = {}
-- A key of another type is a lost index, too.
local has_index = redis.call('TYPE', waiting_names)['ok'] == 'zset' and redis.call('TYPE', tenants)['ok'] == 'zset'

local function claim(stream, key, its_group, id, deliveries, holder)
    local entry = redis.call('XRANGE', key, id, id)[1]
    if entry and has_index and holder == WAITING then redis.call('ZREM', waiting_names, member_for(stream, id, entry[2])) end
    if not entry then
        redis.call('XACK', key, its_group, id)  -- it was deleted while claimed
    elseif is_past_deadline(entry[2]) then
        cordon(stream, id, entry[2], deliveries)
    elseif deliveries >= max_deliveries then
        bury(stream, id, entry[2], deliveries, {})
        settle(stream, group, id)
    else
        redis.call('XCLAIM', key, its_group, consumer, min_idle, id)
        claimed[#claimed + 1] = {stream, id, deliveries + 1, entry[2]}
    end
end

-- Return whether a message was given back to be delivered later.
local function waits(stream, id, holder)
    local due = holder == RETURNED and redis.call('ZSCORE', returned, stream .. '/' .. id)
    return due and tonumber(due) > now
end

-- Drop a consumer that has no claims and has not read for long; it will not use its name again.
local function drop_consumers(key, its_group)
    for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', key, its_group)) do
        if named(flat, 'pending') == 0 and named(flat, 'idle') >= silent then
            redis.call('XGROUP', 'DELCONSUMER', key, its_group, named(flat, 'name'))
        end
    end
end

-- Messages that wait in the index are nobody's, so look at each consumer's claims then. If the index is lost, take the messages
-- that wait as claims of a dead consumer.
local function is_in_index(stream, id, flat)
    return redis.call('ZSCORE', waiting_names, member_for(stream, id, flat))
        and redis.call('ZSCORE', tenants, named(flat, 'fairlead:key') or '')
end

-- Claim the oldest messages that wait in the index, up to the first one that the index has. It has none of these if it was lost
-- and readers have begun a new one.
local function reclaim_lost(stream)
    local key = key_of(stream)
    while #claimed < wanted and looked_at < MOST_CLAIMS do
        local each = redis.call('XPENDING', key, group, '-', '+', 1, WAITING)[1]
        if not each or each[3] < tonumber(min_idle) then return end
        local entry = redis.call('XRANGE', key, each[1], each[1])[1]
        if entry and is_in_index(stream, each[1], entry[2]) then return end
        looked_at = looked_at + 2  -- it needs more commands than another claim
        claim(stream, key, group, each[1], each[4], WAITING)
    end
end

local function holders(stream)
    if not has_index then return {''} end  -- all of them
    local in_index, others = held_in(key_of(stream), group_of(stream, group))
    if in_index == 0 then return {''} end
    reclaim_lost(stream)
    return others
end

-- Return whether the group may have claims in the stream that this script has not looked at.
local function reclaim_from(stream, holder)
    local key, its_group = key_of(stream), group_of(stream, group)
    local left, found
    repeat
        left = math.min(wanted - #claimed, MOST_CLAIMS - looked_at)
        if left <= 0 then return true end
        local command = {'XPENDING', key, its_group, 'IDLE', min_idle, '-', '+', left}
        if holder ~= '' then command[#command + 1] = holder end
        found = redis.pcall(unpack(command))
        if found.err then return true end  -- no consumer of the group has read here
        for _, each in ipairs(found) do
            if waits(stream, each[1], each[2]) then
                redis.call('XCLAIM', key, its_group, RETURNED, 0, each[1], 'JUSTID')  -- its idle time starts again
            else
                claim(stream, key, its_group, each[1], each[4], each[2])
            end
        end
        looked_at = looked_at + #found
    until #found < left
    return false
end

-- Check every key first, so that a damaged key stops the script before it claims a message.
for _, stream in ipairs(streams) do length(key_of(stream)) end
local begin_at, first, seen = 'reclaim:' .. group, tonumber(known[3] or 0), 0
for i = 0, #streams - 1 do
    local slot = (first + i) % #streams
    local stream, is_partial = streams[slot + 1], false
    for _, holder in ipairs(holders(stream)) do
        is_partial = reclaim_from(stream, holder) or is_partial
        seen = seen + 1
    end
    if is_time_to_tidy and not is_partial then drop_consumers(key_of(stream), group_of(stream, group)) end
    if #claimed >= wanted or looked_at >= MOST_CLAIMS then break end
    if seen >= MOST_HOLDERS then
        redis.call('HSET', meta, begin_at, integer(slot + 1))  -- the next call goes on there
        break
    end
end
if is_time_to_tidy then redis.call('HSET', meta, tidied, integer(now)) end
return {integer(now), claimed}
