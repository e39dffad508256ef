-- Make one pass over the streams, and claim messages.
-- ARGV: group, consumer, reads (streams or tenants), preferred stream or '', ttl of a queue without any write, the
-- notification after which the reader waited ('' if it did not wait), greatest number of messages, and how often this scan has
-- returned 'again' so far.
-- Return one of
--   {'messages', now, {stream, id, fields}...}, each with its deliveries too if it was given back
--   {'again'}  if the caller must continue the scan by a second call
--   {'empty', now, newest notification, newest entry of the default stream ('' if it is foreign), time (ms)
--    at which the next message for later is due or ''}: wait for entries after these
local by_tenants, preferred, ttl = ARGV[3] == 'tenants', ARGV[4], tonumber(ARGV[5])
local woken_after, wanted = ARGV[6], tonumber(ARGV[7])
local times_again = tonumber(ARGV[8])
local MOST_AGAIN = 20  -- then read from the part of the index that there is, or faster writers would keep us from reading
local returned, consumers = prefix .. 'returned:' .. group, prefix .. 'consumers:' .. group
local known = redis.call(
    'HMGET', meta, 'streams', 'offset:' .. group, 'empty:' .. group, 'ttl', 'refreshed', 'rests', 'indexed:' .. group,
    'looked:' .. group
)
-- A full server lets a script write whose first write needs no memory. A demoted server, on which a reader must not find its
-- queue empty for ever, refuses every write.
redis.call('HDEL', meta, '')
local count, offset = tonumber(known[1] or 0), tonumber(known[2] or 0)
ttl = tonumber(known[4] or ttl)
local has_index = redis.call('EXISTS', tenants) == 1
if by_tenants or has_index then check_index() end

if not known[2] and not known[3] and redis.call('SADD', prefix .. 'groups', group) == 1 then
    touch_at_rest(prefix .. 'groups', ttl)
end

local default = default_type()
local function seen_now()
    local latest_default = ''
    if default == 'stream' then latest_default = newest(queue) end
    if default == 'none' then latest_default = '0-0' end
    return newest(notifications), latest_default
end
local latest, latest_default = seen_now()

local function empty()
    local next_due = redis.call('ZRANGE', later, 0, 0, 'WITHSCORES')[2]
    local next_returned = redis.call('ZRANGE', returned, 0, 0, 'WITHSCORES')[2]
    if next_returned and (not next_due or tonumber(next_returned) < tonumber(next_due)) then next_due = next_returned end
    return {'empty', integer(now), latest, latest_default, next_due or ''}
end

local function note_consumer()
    if redis.call('ZADD', consumers, integer(now), consumer) == 1 then touch_at_rest(consumers, ttl) end
end

-- One notification wakes all waiting readers. The first reader takes the message. The second finds no
-- message and records this, so that the other readers return at once. Without a notification, one reader of the group looks
-- through the streams every two seconds.
local seen = latest .. ' ' .. latest_default
local due = redis.call('ZRANGEBYSCORE', later, '-inf', integer(now), 'LIMIT', 0, MOST / 2)
local given_back = redis.call('ZRANGEBYSCORE', returned, '-inf', integer(now), 'LIMIT', 0, wanted)
local age = now - tonumber(known[8] or 0)
local is_empty = known[3] == seen and (woken_after ~= '' or age >= 0 and age < 2000)
if is_empty and #due == 0 and #given_back == 0 and not has_index then
    note_consumer()
    return empty()
end

-- Write messages for later that are due now into their streams.
local due_bytes = 0
for _, ticket in ipairs(due) do
    local packed = redis.call('HGET', later_messages, ticket)
    due_bytes = due_bytes + (packed and #packed or 0)
    if packed then
        local of_streams, streams, fields = unpack(cmsgpack.unpack(packed))
        count = grow(count, of_streams)
        put(streams, fields)
    end
    drop_later(ticket)
    if due_bytes >= MOST_BYTES then break end
end
if #due > 0 then
    notify(ttl)
    latest, latest_default = seen_now()
    seen = latest .. ' ' .. latest_default
end

-- A woken reader found no message before, so it only checks the streams written to since then. Other
-- readers check all streams. Always check the default stream too, because its producers send no
-- notifications.
local news = woken_after ~= '' and default ~= 'stream' and not by_tenants and written_since(woken_after)
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
local checks_all = not news and not by_tenants  -- whether this script looks at every stream

-- Move messages to the index: those of all streams, or of the streams that were written to since the last time. Return
-- whether the index has all messages.
local function index_messages(of_all)
    local streams = not of_all and known[7] and (known[7] == latest and {} or written_since(known[7]))
    if not streams then
        checks_all, streams = true, {}
        for stream = 0, count - 1 do streams[#streams + 1] = integer(stream) end
    end
    local with_entries = {}
    for _, stream in ipairs(streams) do
        if length(key_of(stream)) > 0 then with_entries[#with_entries + 1] = stream end
    end
    if index_streams(with_entries) then return false end
    if known[7] ~= latest then redis.call('HSET', meta, 'indexed:' .. group, latest) end
    known[7] = latest
    return true
end

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

local taken, taken_bytes = {}, 0
local function has_room()
    return #taken < wanted and taken_bytes < MOST_BYTES and cordons_left > 0
end

local function give(stream, entry, deliveries)
    taken_bytes = taken_bytes + bytes_of(entry[2])
    taken[#taken + 1] = {stream, entry[1], entry[2], deliveries}
    -- Remove the deadline of a claimed message, so that cordon.lua does not check it each time.
    if named(entry[2], 'fairlead:deadline') then redis.call('ZREM', deadlines, stream .. '/' .. entry[1]) end
end

local function read_streams()
    local slot, without, is_through = first, 0, {}
    while without < slots and has_room() do
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

-- Claim the next message of the default stream, whose tenant has this start tag.
local function take_plain(tenant, tag)
    local entry = take('default')
    if entry then
        charge(tenant, tag, entry[2], #first_of(tenant, 1) > 0)
        virtual_time = tag
    end
    return 'default', entry
end

-- Return how many messages of a tenant to read at once: its share of the room, if all tenants are alike.
local function at_once(tenant, waiting_tenants)
    local share = math.ceil((wanted - #taken) / waiting_tenants)
    if fresh_messages == 0 or waiting_tenants > 1 and not read_ahead[tenant] then return math.min(share, 4) end
    local mean = math.max(1, fresh_bytes / fresh_messages)
    return math.max(1, math.min(share, math.floor((MOST_BYTES - taken_bytes) / mean)))
end

-- Claim messages of these tenants, whose order is that of their stored start tags, until another order is possible. Return
-- how many tenants were served. `is_all`: whether no other tenant waits.
local function serve(next_tenants, waiting_tenants, is_all)
    local least = nil  -- least new start tag of the tenants that wait again
    for i = 1, #next_tenants, 2 do
        local tenant, stored = next_tenants[i], tonumber(next_tenants[i + 1])
        local following = next_tenants[i + 3] and tonumber(next_tenants[i + 3])
        if least and stored >= least then return (i - 1) / 2 end
        local tag, new_tag, stream, entry = valid_tag(stored), nil, nil, nil
        if not following then following = is_all and math.huge or -math.huge end
        repeat
            stream, entry, new_tag = take_from_index(tenant, new_tag or tag, at_once(tenant, waiting_tenants))
            if entry then give(stream, entry) end
        until not new_tag or not has_room() or entry and new_tag >= math.min(following, least or following)
        if new_tag then least = math.min(least or new_tag, new_tag) end
        if not has_room() then break end
    end
    return #next_tenants / 2
end

-- Claim messages of the index, each of the tenant that is least ahead. The index has no messages of the default stream, because
-- plain consumers read it too, so the first of them is compared with the index.
local function read_index()
    local function first_plain() return by_tenants and default == 'stream' and head('default') end
    local plain, count = first_plain(), 16
    local waiting_tenants = math.max(1, redis.call('ZCARD', tenants))
    while has_room() do
        if plain or lowered_by then count = 1 end
        local next_tenants = least_ahead(count)
        local other = plain and (named(plain[2], 'fairlead:key') or '')
        local its_tag = plain and tag_of(other)
        local from_plain = plain and (not next_tenants[1] or its_tag < valid_tag(next_tenants[2]))
        if not next_tenants[1] and not plain then break end
        local is_taken, found, entry
        if from_plain then
            is_taken, found, entry = pcall(take_plain, other, its_tag)
            if is_taken and entry then give(found, entry) end
        else
            local is_all = not plain and not lowered_by and #next_tenants < 2 * count
            is_taken, found = pcall(serve, next_tenants, waiting_tenants, is_all)
            store_served()
            if is_taken then count = found == count and math.min(2 * count, 256) or math.max(2, 2 * found) end
        end
        if not is_taken then
            -- Return what is claimed. The next read raises the error of a damaged stream.
            if #taken == 0 then
                hand_over()
                error(found)
            end
            break
        end
        if from_plain then plain = first_plain() end
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
    if by_tenants then charge_extra(entry[2]) end
    give(stream, entry, held[1][4] + 1)
end

local is_whole = not by_tenants or index_messages(false)
if not is_whole and times_again < MOST_AGAIN then
    hand_over()
    return {'again'}
end

for _, place in ipairs(given_back) do
    if not has_room() then break end
    take_back(string.match(place, '^(.+)/(.+)$'))
    redis.call('ZREM', returned, place)
end

if preferred ~= '' and (preferred ~= 'default' or default == 'stream') then
    hand_over()
    while has_room() do
        local entry = (has_index or by_tenants) and take_of_stream(preferred) or take(preferred)
        if not entry then break end
        if by_tenants then charge_extra(entry[2]) end
        give(preferred, entry)
    end
end

if has_index or by_tenants then read_index() end  -- readers by tenants may have left an index
if by_tenants then
    -- A reader that did not wait finds messages without a notification too.
    if #taken == 0 and woken_after == '' and not checks_all and cordons_left > 0 then
        is_whole = index_messages(true)
        if is_whole or times_again >= MOST_AGAIN then read_index() end
    end
    if #taken == 0 and not is_whole then
        hand_over()
        return {'again'}
    end
elseif slots > 0 and has_room() then
    local before = #taken
    read_streams()
    if #taken > before then
        -- The next read starts after the stream of the last message.
        local last = taken[#taken][1]
        local slot = last == 'default' and count or tonumber(last)
        redis.call('HSET', meta, 'offset:' .. group, integer((slot + 1) % (default == 'stream' and count + 1 or count)))
    end
end

if #taken > 0 then
    note_consumer()
    if has_index or by_tenants then keep_virtual_time(ttl) end
    hand_over()
    keep_alive(ttl, count, tonumber(known[5] or 0))
    return {'messages', integer(now), unpack(taken)}
end
if cordons_left <= 0 then return {'again'} end
redis.call('HDEL', meta, 'virtual:' .. group, 'lowered:' .. group)
note_consumer()
-- No tenant waits: every one starts again at zero. The server frees the memory of long keys beside its commands.
redis.call('UNLINK', passes, waiting_names)
if known[3] ~= seen then redis.call('HSET', meta, 'empty:' .. group, seen) end
if checks_all then redis.call('HSET', meta, 'looked:' .. group, integer(now)) end
if checks_all and not has_entries and known[6] ~= '1' then rest(ttl) end
keep_alive(ttl, count, tonumber(known[5] or 0))
return empty()
