-- Make one pass over the streams, and claim messages.
-- ARGV: group, consumer, reads (streams or tenants), preferred stream or '', ttl of a queue without any write, the
-- notification after which the reader waited ('' if it did not wait), greatest number of messages.
-- Return one of
--   {'messages', now, sections, {stream, id, fields}...}, each with its deliveries too if it was given back
--   {'again'}  if the caller must continue the scan by a second call
--   {'empty', now, sections, newest notification, newest entry of the default stream ('' if it is foreign), time (ms)
--    at which the next message for later is due or '', number of streams}: wait for entries after these
local group, consumer, reads, preferred, ttl = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local woken_after, wanted = ARGV[6], tonumber(ARGV[7])
local heads = prefix .. 'heads:' .. group
local passes, virtual = prefix .. 'passes:' .. group, 'virtual:' .. group
local returned = prefix .. 'returned:' .. group
local known = redis.call('HMGET', meta, 'streams', 'offset:' .. group, 'empty:' .. group, 'ttl', 'refreshed', 'rests')
local count, offset = tonumber(known[1] or 0), tonumber(known[2] or 0)
ttl = tonumber(known[4] or ttl)

if not known[2] and not known[3] and redis.call('SADD', prefix .. 'groups', group) == 1 then
    touch_at_rest(prefix .. 'groups', ttl)
end

local default = default_type()
local function seen_now()
    local latest_default = ''
    if default == 'stream' then latest_default = newest(queue) end
    if default == 'none' and section == '' then latest_default = '0-0' end
    return newest(notifications), latest_default
end
local latest, latest_default = seen_now()

local function all_sections()
    if section == '' then return {} end
    return redis.call('SMEMBERS', sections)
end

local function empty()
    local next_due = redis.call('ZRANGE', later, 0, 0, 'WITHSCORES')[2]
    local next_returned = redis.call('ZRANGE', returned, 0, 0, 'WITHSCORES')[2]
    if next_returned and (not next_due or tonumber(next_returned) < tonumber(next_due)) then next_due = next_returned end
    return {'empty', integer(now), all_sections(), latest, latest_default, next_due or '', count}
end

-- One notification wakes all waiting readers. The first reader takes the message. The second finds no
-- message and records this, so that the other readers return at once.
local seen = latest .. ' ' .. latest_default
local due = redis.call('ZRANGEBYSCORE', later, '-inf', integer(now), 'LIMIT', 0, 500)
local given_back = redis.call('ZRANGEBYSCORE', returned, '-inf', integer(now), 'LIMIT', 0, wanted)
if woken_after ~= '' and known[3] == seen and #due == 0 and #given_back == 0 then return empty() end

-- Write messages for later that are due now into their streams. A full server lets a script write if
-- the first write of the script is a command that is always allowed, such as PEXPIRE.
if #due > 0 then redis.call('PEXPIRE', later, integer(ttl * 9 / 8)) end
for _, ticket in ipairs(due) do
    local packed = redis.call('HGET', later_messages, ticket)
    if packed then
        local of_streams, streams, fields = unpack(cmsgpack.unpack(packed))
        count = grow(count, of_streams)
        put(streams, fields)
    end
    redis.call('HDEL', later_messages, ticket)
    redis.call('ZREM', later, ticket)
end
if #due > 0 then
    notify(ttl)
    latest, latest_default = seen_now()
    seen = latest .. ' ' .. latest_default
end

-- A woken reader found no message before, so it only checks the streams written to since then. Other
-- readers check all streams. Always check the default stream too, because its producers send no
-- notifications.
local news = woken_after ~= '' and default ~= 'stream' and written_since(woken_after)
if news then
    local function distance(stream) return (tonumber(stream) - offset) % count end
    table.sort(news, function(a, b) return distance(a) < distance(b) end)
end
local slots = news and #news or count
if default == 'stream' then slots = count + 1 end
local first = news and 0 or offset % math.max(slots, 1)  -- there may have been more streams
local function stream_at(slot)
    if news then return news[slot + 1] end
    if slot == count then return 'default' end
    return integer(slot)
end

local cordons_left = 1000  -- so that the script does not hold the server for long

local function next_entry(stream)
    local key, its_group = key_of(stream), group_of(stream, group)
    local found = redis.pcall('XREADGROUP', 'GROUP', its_group, consumer, 'COUNT', 1, 'STREAMS', key, '>')
    if found and found.err and string.find(found.err, 'NOGROUP', 1, true) then
        redis.call('XGROUP', 'CREATE', key, its_group, '0')
        found = redis.pcall('XREADGROUP', 'GROUP', its_group, consumer, 'COUNT', 1, 'STREAMS', key, '>')
    end
    if found and found.err then fail(key, found) end
    return found and found[1][2][1]
end

-- Claim the next entry of a stream. Cordon entries before it whose deadline has passed.
local function take(stream)
    if length(key_of(stream)) == 0 then return nil end
    while cordons_left > 0 do
        local entry = next_entry(stream)
        if not entry then return nil end
        if not is_past_deadline(entry[2]) then return entry end
        cordon(stream, entry[1], entry[2], 0)
        cordons_left = cordons_left - 1
    end
    return nil
end

-- Return the next entry of a stream without claiming it.
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
        cordon(stream, found[1], found[2], 0)
        cordons_left = cordons_left - 1
    end
    return nil
end

-- Start-time fair queueing over shard keys, as in core/fair/passes.py. Goyal, Vin and Cheng 1996.
local virtual_time = tonumber(reads == 'tenants' and redis.call('HGET', meta, virtual) or 0)
local starts, weights, charged = {}, {}, {}

-- Read the passes of all tenants in one call, because one call for each is the greatest cost of a read.
local function know_starts(tenants)
    local unknown = {}
    for _, tenant in pairs(tenants) do
        if not starts[tenant] then
            starts[tenant] = 0
            unknown[#unknown + 1] = tenant
        end
    end
    if #unknown == 0 then return end
    for i, pass in ipairs(redis.call('ZMSCORE', passes, unpack(unknown))) do
        starts[unknown[i]] = tonumber(pass or 0)
    end
end

local function start_of(tenant)
    return math.max(virtual_time, starts[tenant])
end

local function weight_of(tenant, flat)
    if weights[tenant] == nil then weights[tenant] = redis.call('HGET', prefix .. 'weights', tenant) end
    return tonumber(weights[tenant] or named(flat, 'fairlead:weight') or 1) or 1
end

-- Charge a message of the preferred stream too, but do not change virtual time, because the message
-- was read out of order.
local function charge(flat, was_in_order)
    local tenant = named(flat, 'fairlead:key') or ''
    know_starts({tenant})
    local start = start_of(tenant)
    starts[tenant] = start + math.max(1, math.floor(1000000 / weight_of(tenant, flat) + 0.5))
    charged[tenant] = true
    if was_in_order then virtual_time = start end
end

local function keep_charges()
    local scores = {}
    for tenant in pairs(charged) do
        scores[#scores + 1] = integer(starts[tenant])
        scores[#scores + 1] = tenant
    end
    redis.call('ZADD', passes, unpack(scores))
    touch(passes, ttl)
    -- Drop passes that are not above virtual time: their tenants start at virtual time, as new ones do.
    redis.call('ZREMRANGEBYSCORE', passes, '-inf', integer(virtual_time))
    if virtual_time > 2 ^ 50 then
        -- Restart from 0 long before numbers lose precision.
        local ahead = redis.call('ZRANGE', passes, 0, -1, 'WITHSCORES')
        for i = 1, #ahead, 2 do redis.call('ZADD', passes, integer(tonumber(ahead[i + 1]) - virtual_time), ahead[i]) end
        virtual_time = 0
    end
    redis.call('HSET', meta, virtual, integer(virtual_time))
end

local taken = {}
local function give(stream, entry, deliveries)
    taken[#taken + 1] = {stream, entry[1], entry[2], deliveries}
    -- Remove the deadline of a claimed message, so that cordon.lua does not check it each time.
    if named(entry[2], 'fairlead:deadline') then redis.call('ZREM', deadlines, stream .. '/' .. entry[1]) end
end

local function by_streams()
    local slot, without, is_through = first, 0, {}
    while #taken < wanted and without < slots and cordons_left > 0 do
        local stream = stream_at(slot)
        local entry = not is_through[slot] and take(stream)
        slot = (slot + 1) % slots
        if entry then
            give(stream, entry)
            without = 0
        else
            is_through[(slot - 1) % slots] = true
            without = without + 1
        end
    end
end

-- Keep the tenant of the first message of each stream for the next read. A kept tenant may be wrong
-- after a deletion, or when readers of another kind read the same streams. So check the first message
-- of the chosen stream, and choose again if the kept tenant was wrong.
local function by_tenants()
    local tenants, streams, looked_at, gave = {}, {}, {}, {}
    local remembered = redis.call('HGETALL', heads)
    for i = 1, #remembered, 2 do tenants[remembered[i]] = remembered[i + 1] end

    local function look(stream)
        local found = head(stream)
        tenants[stream] = found and (named(found[2], 'fairlead:key') or '')
        looked_at[stream], gave[stream] = true, nil
    end

    local function choose()
        know_starts(tenants)
        local chosen, least = nil, nil
        for i = 0, slots - 1 do
            local slot = (first + i) % slots
            local tenant = tenants[streams[slot]]
            if tenant then
                local start = start_of(tenant)
                if not least or start < least then chosen, least = slot, start end
            end
        end
        return chosen
    end

    for slot = 0, slots - 1 do
        local stream = stream_at(slot)
        streams[slot] = stream
        if not tenants[stream] and length(key_of(stream)) > 0 then look(stream) end
    end
    while #taken < wanted and cordons_left > 0 do
        local chosen = choose()
        if not chosen then break end
        local stream = streams[chosen]
        local expected = tenants[stream]
        if not looked_at[stream] then look(stream) end
        if tenants[stream] == expected then
            local entry = take(stream)
            if entry then
                charge(entry[2], true)
                give(stream, entry)
                first = (chosen + 1) % slots
            end
            gave[stream] = true
            if #taken < wanted then look(stream) end
        end
    end
    local news = {}
    for stream in pairs(looked_at) do
        if tenants[stream] and not gave[stream] then
            news[#news + 1] = stream
            news[#news + 1] = tenants[stream]
        elseif remembered[1] then
            redis.call('HDEL', heads, stream)
        end
    end
    if #news > 0 then
        redis.call('HSET', heads, unpack(news))
        touch(heads, ttl)
    end
end

-- Claim a message that a consumer has given back, if nobody has ended or reclaimed it since.
local function take_back(stream, id)
    local key, its_group = key_of(stream), group_of(stream, group)
    local held = redis.pcall('XPENDING', key, its_group, id, id, 1, RETURNED)
    local entry = not held.err and #held > 0 and redis.call('XRANGE', key, id, id)[1]
    if not entry then return end
    if is_past_deadline(entry[2]) then
        cordon(stream, id, entry[2], held[1][4])
        return
    end
    redis.call('XCLAIM', key, its_group, consumer, 0, id)
    if reads == 'tenants' then charge(entry[2], false) end
    give(stream, entry, held[1][4] + 1)
end

for _, place in ipairs(given_back) do
    take_back(string.match(place, '^(.+)/(.+)$'))
    redis.call('ZREM', returned, place)
end

if preferred ~= '' and (preferred ~= 'default' or default == 'stream') then
    while #taken < wanted do
        local entry = take(preferred)
        if not entry then break end
        if reads == 'tenants' then
            charge(entry[2], false)
            redis.call('HDEL', heads, preferred)
        end
        give(preferred, entry)
    end
end
if slots > 0 and #taken < wanted then
    local before = #taken
    if reads == 'tenants' then by_tenants() else by_streams() end
    if #taken > before then
        -- The next read starts after the stream of the last message.
        local last = taken[#taken][1]
        local slot = last == 'default' and count or tonumber(last)
        redis.call('HSET', meta, 'offset:' .. group, integer((slot + 1) % (default == 'stream' and count + 1 or count)))
    end
end
if #taken > 0 then
    if reads == 'tenants' then keep_charges() end
    keep_alive(ttl, count, tonumber(known[5] or 0))
    return {'messages', integer(now), all_sections(), unpack(taken)}
end
if cordons_left == 0 then return {'again'} end
-- A reader of a demoted server must not find its queue empty for ever. So write here in any case, if only nothing: a server
-- that takes no writes then raises its error.
if reads == 'tenants' then
    if redis.call('HDEL', meta, virtual) == 1 then
        redis.call('DEL', passes)  -- no tenant waits: every one starts again at zero
    end
else
    redis.call('HDEL', meta, '')
end
if known[3] ~= seen then redis.call('HSET', meta, 'empty:' .. group, seen) end
if not news and not has_entries and known[6] ~= '1' then rest(ttl) end
keep_alive(ttl, count, tonumber(known[5] or 0))
return empty()
