-- Claim messages for a consumer whose claims by other consumers are too old. ARGV: group, consumer,
-- least age of a claim (ms), greatest number of messages, deliveries after which a message becomes a
-- dead letter, number of streams to look at, or '' for all of them, time (ms) at which the call began or ''. Return the time (ms), {stream, id, deliveries, fields} of
-- each message, and the number of streams that are left to look at. index.lua comes before this script.
-- One run looks at some claims, and the next run goes on there. So that many callers look at all claims no more often than one,
-- a caller of '' gets 0 if another one has begun with all of them not long ago.
local min_idle, wanted = tonumber(ARGV[3]), tonumber(ARGV[4])
local max_deliveries, began = tonumber(ARGV[5]), tonumber(ARGV[7] or nil)
local returned, consumers = prefix .. 'returned:' .. group, prefix .. 'consumers:' .. group
local begin_at, round_at = 'reclaim:' .. group, 'round:' .. group
local known = redis.call('HMGET', meta, 'streams', begin_at, round_at)
local streams = all_streams(tonumber(known[1] or 0))
redis.call('HDEL', meta, '')  -- a full server lets a script write whose first write needs no memory
local MOST_HOLDERS = 500  -- consumers with claims that one run looks at, beside MOST and MOST_BYTES
local examined, seen, bytes = 0, 0, 0
local claimed, is_claimed = {}, {}
-- A key of another type is a lost index, too.
local has_index = redis.call('TYPE', waiting_names)['ok'] == 'zset' and redis.call('TYPE', tenants)['ok'] == 'zset'

local function claim(stream, key, its_group, id, deliveries, holder)
    local entry = redis.call('XRANGE', key, id, id)[1]
    if entry then bytes = bytes + bytes_of(entry[2]) end
    if entry and has_index and holder == WAITING then redis.call('ZREM', waiting_names, member_for(stream, id, entry[2])) end
    if not entry then
        redis.call('XACK', key, its_group, id)  -- it was deleted while claimed
    elseif is_past_deadline(entry[2]) then
        cordon(stream, id, entry[2], deliveries)
    elseif deliveries >= max_deliveries then
        bury(stream, id, entry[2], deliveries)
        settle(stream, group, {id})
        examined = examined + MOST / MOST_BURIED
    else
        redis.call('XCLAIM', key, its_group, consumer, integer(min_idle), id)
        claimed[#claimed + 1] = {stream, id, deliveries + 1, entry[2]}
        is_claimed[stream .. '/' .. id] = true
    end
end

local function has_room()
    return #claimed < wanted and examined < MOST and bytes < MOST_BYTES
end

-- Return whether a message was given back to be delivered later.
local function waits(stream, id, holder)
    local due = holder == RETURNED and redis.call('ZSCORE', returned, stream .. '/' .. id)
    return due and tonumber(due) > now
end

-- Messages that wait in the index are nobody's, so look at each consumer's claims then. If the index is lost, take the messages
-- that wait as claims of a dead consumer.
local function is_nobody(holder)
    return has_index and holder == WAITING
end

local function is_in_index(stream, id, flat)
    return redis.call('ZSCORE', waiting_names, member_for(stream, id, flat))
        and redis.call('ZSCORE', tenants, named(flat, 'fairlead:key') or '')
end

-- Claim the oldest messages that wait in the index, up to the first one that the index has. It has none of these if it was lost
-- and readers have begun a new one.
local function reclaim_lost(stream, key, its_group)
    while has_room() do
        local each = redis.call('XPENDING', key, its_group, '-', '+', 1, WAITING)[1]
        if not each or each[3] < min_idle then return end
        local entry = redis.call('XRANGE', key, each[1], each[1])[1]
        if entry and is_in_index(stream, each[1], entry[2]) then return end
        examined = examined + 2  -- it needs more commands than another claim
        claim(stream, key, its_group, each[1], each[4], WAITING)
    end
end

-- Return the consumers whose claims to look at, in an order that is always the same; '' means all of them in one list, which
-- has the messages that wait in the index too.
local function holders(stream, key, its_group)
    if redis.call('EXISTS', key) == 0 then return {} end
    local ours = nil
    for _, each in ipairs(has_index and groups_once(key) or {}) do
        if each.name == its_group then ours = each end
    end
    if not ours then return {''} end
    reclaim_lost(stream, key, its_group)
    if ours.consumers > MOST_HOLDERS then return {''} end
    local found, others = redis.call('XPENDING', key, its_group), {}
    for _, each in ipairs(found[4] or {}) do
        if not is_nobody(each[1]) then others[#others + 1] = each[1] end
    end
    table.sort(others)
    return others
end

local at_holder, at_id = '', '-'  -- where this run goes on in its first stream

-- Look at the claims of one list. Return whether that was all.
local function reclaim_from(stream, key, its_group, holder)
    local found
    repeat
        local room = MOST - examined
        if not has_room() then return false end
        local command = {'XPENDING', key, its_group, at_id, '+', room}
        if holder ~= '' then command[#command + 1] = holder end
        found = redis.pcall(unpack(command))
        if found.err then return true end  -- no consumer of the group has read here
        -- Claims age while a script runs, so their age counts up to this instant.
        local time = redis.call('TIME')
        local age_of_call = began and time[1] * 1000 + math.ceil(time[2] / 1000) - began
        for _, each in ipairs(found) do
            if not has_room() then return false end
            local id, its_holder = each[1], each[2]
            examined = examined + 1
            at_id = '(' .. id
            -- The call itself has claimed it, in this run or in one before.
            local is_new = is_claimed[stream .. '/' .. id] or began and its_holder == consumer and each[3] <= age_of_call
            if each[3] >= min_idle and not is_nobody(its_holder) and not is_new then
                if waits(stream, id, its_holder) then
                    redis.call('XCLAIM', key, its_group, RETURNED, 0, id, 'JUSTID')  -- its idle time starts again
                else
                    claim(stream, key, its_group, id, each[4], its_holder)
                end
            end
        end
    until #found < room
    return true
end

-- Look at all claims of a stream. Return whether that was all.
local function look_through(stream)
    local key, its_group = key_of(stream), group_of(stream, group)
    local lists = holders(stream, key, its_group)
    if lists[1] == '' and at_holder ~= '' then at_holder, at_id = '', '-' end
    for _, holder in ipairs(lists) do
        seen = seen + 1
        if holder >= at_holder then
            if holder ~= at_holder then at_id = '-' end
            at_holder = holder
            if not reclaim_from(stream, key, its_group, holder) then return false end
        end
    end
    return true
end

-- Drop consumers that have no claims and have not read for long; they will not use their names again.
local function drop_consumers()
    local silent_since = now - math.max(min_idle, 3600000)
    local most = math.max(1, math.floor(MOST / math.max(1, #streams)))
    for _, name in ipairs(redis.call('ZRANGEBYSCORE', consumers, '-inf', integer(silent_since), 'LIMIT', 0, most)) do
        local has_claims = false
        for _, stream in ipairs(streams) do
            local key, its_group = key_of(stream), group_of(stream, group)
            local held = redis.pcall('XPENDING', key, its_group, '-', '+', 1, name)
            if not held.err and #held > 0 then
                has_claims = true
            elseif not held.err then
                redis.call('XGROUP', 'DELCONSUMER', key, its_group, name)
            end
        end
        if has_claims then redis.call('ZADD', consumers, integer(now), name) else redis.call('ZREM', consumers, name) end
    end
end

-- Check every key first, so that a damaged key stops the script before it claims a message.
for _, stream in ipairs(streams) do length(key_of(stream)) end
local slot, id, holder = string.match(known[2] or '', '^(%d+) (%S+) (.*)$')
local left, last_part = tonumber(ARGV[6]) or #streams, 0
if slot and tonumber(slot) < #streams then
    slot, at_id, at_holder = tonumber(slot), id, holder
    if ARGV[6] == '' then last_part = 1 end  -- the first part of that stream comes last, if this run gets there
else
    slot = 0
end
left = left + last_part
while left > 0 and #streams > 0 and seen < MOST_HOLDERS and look_through(streams[slot + 1]) do
    slot, left, at_holder, at_id = (slot + 1) % #streams, left - 1, '', '-'
end
left = #streams > 0 and math.max(0, left - last_part) or 0
if left == 0 and #claimed < wanted then
    if known[2] then redis.call('HDEL', meta, begin_at) end
    drop_consumers()
else
    redis.call('HSET', meta, begin_at, slot .. ' ' .. at_id .. ' ' .. at_holder)
    if ARGV[6] == '' then
        local since = now - tonumber(known[3] or 0)
        if known[3] and since >= 0 and since < min_idle / 8 then left = 0 else redis.call('HSET', meta, round_at, integer(now)) end
    end
end
return {integer(now), claimed, left}
