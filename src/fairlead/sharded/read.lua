-- One pass over the streams, which claims one message at most.
-- ARGV: group, consumer, reads (streams or tenants), preferred stream or '', ttl for a queue that nobody has written to,
-- 1 if only woken. Answers {'message', stream, id, deliveries, now, fields}; {'again'} when the pass has to be gone on with;
-- or {'empty', newest notification, newest entry of the default stream ('' if it is none)}: wait for what comes after.
local group, consumer, reads, preferred, ttl = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local is_only_woken = ARGV[6] == '1'
local heads = prefix .. 'heads:' .. group
local passes, virtual = prefix .. 'passes:' .. group, 'virtual:' .. group
local known = redis.call('HMGET', meta, 'streams', 'offset:' .. group, 'empty:' .. group, 'ttl', 'refreshed')
local count, offset = tonumber(known[1] or 0), tonumber(known[2] or 0)
ttl = tonumber(known[4] or ttl)

if not known[2] and not known[3] and redis.call('SADD', prefix .. 'groups', group) == 1 then
    touch(prefix .. 'groups', ttl)
end

local default_type = redis.call('TYPE', queue)['ok']
local latest = newest(notifications)
local latest_default = ''
if default_type == 'stream' then latest_default = newest(queue) end
if default_type == 'none' then latest_default = '0-0' end

-- One message wakes all that wait. The first of them takes it, the second finds nothing and says so; for the others nothing
-- can be there that it has not looked for.
local seen = latest .. ' ' .. latest_default
if is_only_woken and known[3] == seen then return {'empty', latest, latest_default} end

-- The default stream takes its turn as one stream more.
local slots = count
if default_type == 'stream' then slots = count + 1 end
local function stream_at(slot)
    if slot == count then return 'default' end
    return integer(slot)
end

local cordons_left = 1000  -- a script must not hold the server for long

local function next_entry(stream)
    local key, its_group = key_of(stream), group_of(stream, group)
    local found = redis.pcall('XREADGROUP', 'GROUP', its_group, consumer, 'COUNT', 1, 'STREAMS', key, '>')
    if found and found.err and string.find(found.err, 'NOGROUP', 1, true) then
        redis.call('XGROUP', 'CREATE', key, its_group, '0')
        found = redis.pcall('XREADGROUP', 'GROUP', its_group, consumer, 'COUNT', 1, 'STREAMS', key, '>')
    end
    if found and found.err then damaged(key, found.err) end
    return found and found[1][2][1]
end

-- The next entry of a stream, claimed; what is past its deadline is cordoned on the way.
local function take(stream)
    if length(key_of(stream)) == 0 then return nil end
    while cordons_left > 0 do
        local entry = next_entry(stream)
        if not entry then return nil end
        if not is_past_deadline(entry[2]) then return entry end
        cordon(stream, entry[1], entry[2], 0, ttl)
        cordons_left = cordons_left - 1
    end
    return nil
end

-- The next entry of a stream, not claimed.
local function head(stream)
    local key, its_group, last = key_of(stream), group_of(stream, group), '0-0'
    if length(key) == 0 then return nil end
    for _, each in ipairs(groups_of(key)) do
        if each.name == its_group then last = each.last end
    end
    while cordons_left > 0 do
        local found = redis.call('XRANGE', key, '(' .. last, '+', 'COUNT', 1)[1]
        if not found then return nil end
        if not is_past_deadline(found[2]) then return found end
        cordon(stream, found[1], found[2], 0, ttl)
        cordons_left = cordons_left - 1
    end
    return nil
end

-- Start-time fair queueing over shard keys, as in core/passes.py. Goyal, Vin and Cheng 1996.
local virtual_time = nil
local starts = {}

-- Of all at once: to ask for each of them would cost more than all the rest.
local function know_starts(tenants)
    virtual_time = tonumber(redis.call('HGET', meta, virtual) or 0)
    local wanted = {}
    for _, tenant in pairs(tenants) do
        if not starts[tenant] then
            starts[tenant] = virtual_time
            wanted[#wanted + 1] = tenant
        end
    end
    if #wanted == 0 then return end
    for i, pass in ipairs(redis.call('ZMSCORE', passes, unpack(wanted))) do
        starts[wanted[i]] = math.max(virtual_time, tonumber(pass or 0))
    end
end

-- A message that was preferred is charged for, but was nobody's turn: virtual time stays.
local function charge(flat, was_its_turn)
    local tenant = named(flat, 'fairlead:key') or ''
    local weight = tonumber(redis.call('HGET', prefix .. 'weights', tenant) or named(flat, 'fairlead:weight') or 1) or 1
    know_starts({tenant})
    local start = starts[tenant]
    redis.call('ZADD', passes, integer(start + math.max(1, math.floor(1000000 / weight + 0.5))), tenant)
    touch(passes, ttl)
    if not was_its_turn then return end
    redis.call('ZREMRANGEBYSCORE', passes, '-inf', integer(start))  -- no different from tenants never seen
    if start > 2 ^ 50 then
        -- Long before numbers lose their last digit.
        local ahead = redis.call('ZRANGE', passes, 0, -1, 'WITHSCORES')
        for i = 1, #ahead, 2 do redis.call('ZADD', passes, integer(tonumber(ahead[i + 1]) - start), ahead[i]) end
        start = 0
    end
    redis.call('HSET', meta, virtual, integer(start))
end

local function by_streams()
    for i = 0, slots - 1 do
        local slot = (offset + i) % slots
        local entry = take(stream_at(slot))
        if entry or cordons_left == 0 then return entry, slot end
    end
    return nil
end

-- The tenants at the heads of streams are remembered from read to read. What is remembered may be wrong, after a deletion or
-- beside readers of another kind: so the head of the stream that is chosen is looked at, and if it was, we choose again.
local function by_tenants()
    local tenants, looked_at = {}, {}
    local remembered = redis.call('HGETALL', heads)
    for i = 1, #remembered, 2 do tenants[remembered[i]] = remembered[i + 1] end

    local function look(stream)
        local found = head(stream)
        tenants[stream] = found and (named(found[2], 'fairlead:key') or '')
        looked_at[stream] = true
        if found then
            redis.call('HSET', heads, stream, tenants[stream])
        else
            redis.call('HDEL', heads, stream)
        end
    end

    local streams = {}
    for slot = 0, slots - 1 do
        local stream = stream_at(slot)
        streams[slot] = stream
        if not tenants[stream] and length(key_of(stream)) > 0 then look(stream) end
    end
    while cordons_left > 0 do
        know_starts(tenants)
        local chosen, least = nil, nil
        for i = 0, slots - 1 do
            local slot = (offset + i) % slots
            local tenant = tenants[streams[slot]]
            if tenant then
                local start = starts[tenant]
                if not least or start < least then chosen, least = slot, start end
            end
        end
        if not chosen then return nil end
        local stream = streams[chosen]
        local expected = tenants[stream]
        if not looked_at[stream] then look(stream) end
        if tenants[stream] == expected then
            touch(heads, ttl)
            return take(stream), chosen
        end
    end
    return nil
end

local function delivered(stream, entry, was_its_turn)
    if reads == 'tenants' then
        charge(entry[2], was_its_turn)
        redis.call('HDEL', heads, stream)
    end
    touch(meta, ttl)
    keep_alive(ttl, count, tonumber(known[5] or 0))
    return {'message', stream, entry[1], 1, integer(now), entry[2]}
end

if preferred ~= '' and (preferred ~= 'default' or default_type == 'stream') then
    local entry = take(preferred)
    if entry then return delivered(preferred, entry, false) end
end
local entry, slot
if reads == 'tenants' then entry, slot = by_tenants() else entry, slot = by_streams() end
if entry then
    redis.call('HSET', meta, 'offset:' .. group, integer((slot + 1) % slots))
    return delivered(stream_at(slot), entry, true)
end
if cordons_left == 0 then return {'again'} end
if known[3] ~= seen then redis.call('HSET', meta, 'empty:' .. group, seen) end
if reads == 'tenants' and redis.call('HDEL', meta, virtual) == 1 then
    redis.call('DEL', passes)  -- nobody waits: all begin anew
end
touch(meta, ttl)
keep_alive(ttl, count, tonumber(known[5] or 0))
return {'empty', latest, latest_default}
