-- The index of a group, for reads by tenants: the messages that the group has not read, by tenant and then by age. So each
-- tenant has a place of its own, however many tenants share its streams. ARGV: group, consumer.
-- A read moves new messages from the streams to the index: the consumer WAITING holds them in the stream's group, and
-- `waiting` names each. Thus readers without an index skip these messages, a reclaim finds those that the index has lost, and
-- a message leaves its stream as any other does. A member of `waiting` may be out of date, because other scripts end messages
-- without it, so believe it only if WAITING holds the message.
local group, consumer = ARGV[1], ARGV[2]
local waiting_names, tenants, passes = prefix .. 'waiting:' .. group, prefix .. 'tenants:' .. group, prefix .. 'passes:' .. group

local STRIDE = 1000000  -- virtual time of one message of weight 1
local FIRST = 50  -- tenants that may have one start tag if many come at once; those of the others are spread

local cordons_left = 2 * MOST_BURIED  -- cordoned messages, and members of the index that are out of date

-- Return the stream and the id of a member, without the beginning; nil if another writer has put something else there.
local function place_of(rest)
    local millis_end = 2 + (tonumber(string.match(rest, '^%d%d')) or 0)
    local sequence, stream = string.match(rest, '^%d%d(%d+)/(%d+)$', millis_end + 1)
    if sequence then return stream, string.sub(rest, 3, millis_end) .. '-' .. sequence end
end

-- Return the first members of a tenant, at most `count`, without their beginning.
local function first_of(tenant, count)
    local start = of_tenant(tenant)
    local found = redis.call('ZRANGEBYLEX', waiting_names, '[' .. start, '(' .. start .. ':', 'LIMIT', 0, count)
    for i, member in ipairs(found) do found[i] = string.sub(member, #start + 1) end
    return found
end

-- Start-time fair queueing, Goyal, Vin and Cheng 1996: serve the least start tag. The tag of a tenant's next message is the
-- finish tag of its last one, but not less than virtual time, which is the tag of the message in service.
local virtual_time, weights, has_weights = 0, {}, nil

-- Numbers lose precision above 2^53. When virtual time has passed this, it restarts from 0, and the tags from then on are
-- small. The next reads lower the great ones (lower_tags); until then, this is the virtual time to subtract from them.
local GREAT = 2 ^ 50
local lowered_by = nil

-- Return a start tag that was stored, or virtual time for one that is below it or that no reader has stored.
local function valid_tag(tag)
    tag = tonumber(tag or nil)
    if tag and lowered_by and tag >= GREAT then tag = tag - lowered_by end
    return tag and tag >= virtual_time and tag <= 2 ^ 52 and tag or virtual_time
end

local function tag_of(tenant)
    return valid_tag(redis.call('ZSCORE', tenants, tenant) or redis.call('ZSCORE', passes, tenant))
end

local function weight_of(tenant, flat)
    if has_weights == nil then has_weights = redis.call('EXISTS', prefix .. 'weights') == 1 end
    if has_weights and weights[tenant] == nil then weights[tenant] = redis.call('HGET', prefix .. 'weights', tenant) end
    local weight = tonumber(weights[tenant] or named(flat, 'fairlead:weight') or 1)
    -- Another writer may have put something else there.
    return weight and weight >= 0.001 and weight <= 1000 and weight or 1
end

-- Store the start tag of a tenant's next message. `waits`: whether it is in the index.
local function set_tag(tenant, tag, waits)
    if not waits then redis.call('ZREM', tenants, tenant) end
    redis.call('ZADD', waits and tenants or passes, integer(tag), tenant)
end

local function stride_of(tenant, flat)
    return math.max(1, math.floor(STRIDE / weight_of(tenant, flat) + 0.5))
end

-- Charge a message to its tenant, whose start tag this is.
local function charge(tenant, tag, flat, waits)
    set_tag(tenant, tag + stride_of(tenant, flat), waits)
end

-- Charge a message that is read out of order: virtual time stays.
local function charge_extra(flat)
    local tenant = named(flat, 'fairlead:key') or ''
    charge(tenant, tag_of(tenant), flat, #first_of(tenant, 1) > 0)
end

-- Raise the error of a damaged key before anything changes, and read virtual time.
local function check_index()
    for _, key in ipairs({waiting_names, tenants, passes}) do
        local size = redis.pcall('ZCARD', key)
        if type(size) == 'table' then fail(key, size) end
    end
    -- A reader without an index may have found the streams empty, and dropped virtual time.
    lowered_by = tonumber(redis.call('HGET', meta, 'lowered:' .. group) or nil)
    virtual_time = valid_tag(redis.call('HGET', meta, 'virtual:' .. group)
        or redis.call('ZRANGE', tenants, 0, 0, 'WITHSCORES')[2])
end

-- Lower some of the great tags that are left.
local function lower_tags()
    local left = MOST
    for _, key in ipairs({passes, tenants}) do
        local tags = redis.call('ZRANGEBYSCORE', key, integer(GREAT), '+inf', 'WITHSCORES', 'LIMIT', 0, left)
        for i = 1, #tags, 2 do redis.call('ZADD', key, integer(valid_tag(tags[i + 1])), tags[i]) end
        left = left - #tags / 2
    end
    if left > 0 then
        redis.call('HDEL', meta, 'lowered:' .. group)
        lowered_by = nil
    end
end

local function keep_virtual_time(ttl)
    -- Drop passes that are not above virtual time: their tenants start at virtual time, as new ones do.
    -- The next reads drop the others, so that this one does not hold the server for long.
    local old = redis.call('ZCOUNT', passes, '-inf', integer(virtual_time))
    if old > 0 then redis.call('ZREMRANGEBYRANK', passes, 0, math.min(old, MOST) - 1) end
    if lowered_by then
        lower_tags()
    elseif virtual_time > GREAT then
        redis.call('HSET', meta, 'lowered:' .. group, integer(virtual_time))
        virtual_time = 0
    end
    touch(passes, ttl)
    redis.call('HSET', meta, 'virtual:' .. group, integer(virtual_time))
end

-- Fields of messages in the index that the consumer holds now, by stream and id; and the number and bytes of all that this script
-- has read.
local fresh, fresh_messages, fresh_bytes = {}, 0, 0

local function add_fresh(stream, id, flat)
    fresh[stream] = fresh[stream] or {}
    fresh[stream][id] = flat
    fresh_messages = fresh_messages + 1
    for i = 2, #flat, 2 do fresh_bytes = fresh_bytes + #flat[i] end
end

local function pop_fresh(stream, id)
    local flat = fresh[stream] and fresh[stream][id]
    if flat then fresh[stream][id] = nil end
    return flat
end

-- Run a command with these words, a thousand at a time.
local function in_parts(command, key, words)
    for from = 1, #words, 1000 do redis.call(command, key, unpack(words, from, math.min(from + 999, #words))) end
end

-- Let tenants wait from now on, if they do not yet. `fields_of`: the fields of a message of each. If many come at once, spread
-- their tags over one stride. Otherwise they all go on in step, and a later tenant would wait until each of them was served.
local function add_tenants(names, fields_of)
    local new = {}
    for from = 1, #names, 1000 do
        local some = {unpack(names, from, math.min(from + 999, #names))}
        local tags, ahead = redis.call('ZMSCORE', tenants, unpack(some)), redis.call('ZMSCORE', passes, unpack(some))
        for i, tenant in ipairs(some) do
            if not tags[i] then new[#new + 1] = {tenant, valid_tag(ahead[i])} end
        end
    end
    local together = #new > FIRST and math.max(0, FIRST - redis.call('ZCARD', tenants)) or #new
    for i, each in ipairs(new) do
        local tenant, tag = each[1], each[2]
        if i > together and tag == virtual_time then
            local stride = math.min(STRIDE, stride_of(tenant, fields_of[tenant]))
            tag = tag + math.floor(stride * (i - together) / (#new - together + 1))
        end
        redis.call('ZADD', tenants, integer(tag), tenant)
    end
end

-- Claim for the consumer at most `each` unread messages of each of these streams.
local function read_new(streams, each)
    local command = {'XREADGROUP', 'GROUP', group, consumer, 'COUNT', integer(each), 'STREAMS'}
    for _, stream in ipairs(streams) do command[#command + 1] = key_of(stream) end
    for _ = 1, #streams do command[#command + 1] = '>' end
    local found = redis.pcall(unpack(command))
    if found and found.err and string.find(found.err, 'NOGROUP', 1, true) then
        for _, stream in ipairs(streams) do redis.pcall('XGROUP', 'CREATE', key_of(stream), group, '0') end
        found = redis.pcall(unpack(command))
    end
    if found and found.err then fail('of a stream', found) end
    return found or {}
end

-- Move the unread messages of these streams to the index. Return whether some are left.
local function index_streams(streams)
    local room, each = MOST, 1
    local members, names, fields_of = {}, {}, {}
    while #streams > 0 and room > 0 and fresh_bytes < MOST_BYTES do
        local left = {}
        for from = 1, #streams, 500 do
            for _, part in ipairs(read_new({unpack(streams, from, math.min(from + 499, #streams))}, each)) do
                local stream = string.sub(part[1], #prefix + 2)
                for _, entry in ipairs(part[2]) do
                    local id, flat = entry[1], entry[2]
                    local tenant = named(flat, 'fairlead:key') or ''
                    members[#members + 1] = 0
                    members[#members + 1] = member_of(tenant, stream, id)
                    if not fields_of[tenant] then names[#names + 1] = tenant end
                    fields_of[tenant] = fields_of[tenant] or flat
                    add_fresh(stream, id, flat)
                end
                room = room - #part[2]
                if #part[2] == each then left[#left + 1] = stream end
            end
        end
        local mean = math.max(1, fresh_bytes / math.max(1, fresh_messages))
        each = math.max(1, math.floor(math.min(room, (MOST_BYTES - fresh_bytes) / mean) / math.max(1, #left)))
        streams = left
    end
    in_parts('ZADD', waiting_names, members)
    add_tenants(names, fields_of)
    return #streams > 0
end

-- Claim for the consumer those of these messages that wait in the index. `places`: stream and id of each, in turn.
local function claim(places)
    local ids_of, streams = by_stream(places, 1)
    for _, stream in ipairs(streams) do
        local waits_here = those_held(ids_of[stream], holders_of(stream, group, ids_of[stream], WAITING) or {})
        if #waits_here > 0 then
            for _, entry in ipairs(redis.call('XCLAIM', key_of(stream), group, consumer, 0, unpack(waits_here))) do
                if entry then add_fresh(stream, entry[1], entry[2]) end
            end
        end
    end
end

-- Return the fields of a message that the consumer has claimed, or nil. Cordon it if its deadline has passed.
local function open(stream, id)
    local flat = pop_fresh(stream, id)
    if flat and is_past_deadline(flat) then
        cordon(stream, id, flat, 0)
        cordons_left = cordons_left - 1
        return nil
    end
    return flat
end

-- Return the tenants that are least ahead, at most `count`, and their stored start tags, in turn.
local function least_ahead(count)
    local found = redis.call('ZRANGE', tenants, 0, count - 1, 'WITHSCORES')
    if lowered_by then
        local great = redis.call('ZRANGEBYSCORE', tenants, integer(GREAT), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
        if great[1] and valid_tag(great[2]) < valid_tag(found[2]) then found = great end
    end
    return found
end

-- A script serves several messages of a tenant with the commands for one: it reads and claims their members at once, and
-- stores at the end what has changed. `read_ahead`: the members of each tenant that were read, with their places.
local read_ahead, is_sound = {}, {}
local served, next_tags = {}, {}  -- members to remove; the new start tag of a tenant, and whether it still waits

-- Store what was served.
local function store_served()
    in_parts('ZREM', waiting_names, served)
    local waits, gone, ahead = {}, {}, {}
    for tenant, each in pairs(next_tags) do
        local tags = each.waits and waits or ahead
        tags[#tags + 1] = integer(each.tag)
        tags[#tags + 1] = tenant
        if not each.waits then gone[#gone + 1] = tenant end
    end
    in_parts('ZADD', tenants, waits)
    in_parts('ZREM', tenants, gone)
    in_parts('ZADD', passes, ahead)
    served, next_tags = {}, {}
end

-- Read the first members of a tenant, and claim the messages of about `many`, or of fewer if a stream is damaged.
local function read_members(tenant, many)
    in_parts('ZREM', waiting_names, served)
    served = {}
    local found, places = {members = first_of(tenant, many + 1), at = 0, last = 0, places = {}}, {}
    for i = 1, math.min(many, #found.members) do
        local stream, id = place_of(found.members[i])
        if stream and not is_sound[stream] then
            local is_read, failed = pcall(length, key_of(stream))
            if not is_read and i == 1 then error(failed) end  -- before the change
            if not is_read then break end
            is_sound[stream] = true
        end
        found.places[i], found.last = stream and {stream, id}, i
        if stream and not (fresh[stream] and fresh[stream][id]) then
            places[#places + 1], places[#places + 2] = stream, id
        end
    end
    claim(places)
    read_ahead[tenant] = found
    return found
end

-- Claim the tenant's next message, with about `many` if they must be read first. Return its stream, id and fields, or nil; and the
-- tenant's new start tag, or nil if it does not wait any more.
local function take_from_index(tenant, tag, many)
    local found = read_ahead[tenant]
    if not found or found.at == found.last then found = read_members(tenant, many) end
    found.at = found.at + 1
    local member, place, follows = found.members[found.at], found.places[found.at], found.members[found.at + 1] ~= nil
    local flat = place and open(place[1], place[2])
    if member then served[#served + 1] = of_tenant(tenant) .. member end
    if flat then
        virtual_time = tag
        tag = tag + stride_of(tenant, flat)
    else
        cordons_left = cordons_left - 1
    end
    if flat or not follows then next_tags[tenant] = {tag = tag, waits = follows} end
    return flat and place[1], flat and {place[2], flat}, follows and tag or nil
end

-- Claim the first message of a stream, out of order. Return it or nil.
local function take_of_stream(stream)
    while cordons_left > 0 do
        local held = redis.pcall('XPENDING', key_of(stream), group, '-', '+', 1, WAITING)
        if held.err or #held == 0 then return nil end
        local id = held[1][1]
        local found = redis.call('XRANGE', key_of(stream), id, id)[1]
        claim({stream, id})
        local flat = open(stream, id)
        if found then redis.call('ZREM', waiting_names, member_for(stream, id, found[2])) end
        if flat then return {id, flat} end
        cordons_left = cordons_left - 1
    end
end

-- Let WAITING hold the messages that were moved to the index and not read, without a delivery.
local function hand_over()
    for stream, flats in pairs(fresh) do
        local those = {}
        for id in pairs(flats) do those[#those + 1] = id end
        for from = 1, #those, 1000 do
            local command = {'XCLAIM', key_of(stream), group, WAITING, 0, unpack(those, from, math.min(from + 999, #those))}
            for _, word in ipairs({'RETRYCOUNT', 0, 'JUSTID'}) do command[#command + 1] = word end
            redis.call(unpack(command))
        end
    end
    fresh = {}
end
