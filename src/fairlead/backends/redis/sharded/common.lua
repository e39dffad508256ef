-- What all scripts of a sharded queue share; it stands before each of them.
-- KEYS[1] is {queue}:meta. Every other key is the same text with another end, so that all lie in one hash slot:
--   {queue}:s<i>            a stream of messages       {queue}:notifications  wakes readers: one small entry a write
--   {queue}:later           zset: tickets by the time (ms) at which their messages are to be written
--   {queue}:later:messages  hash: ticket -> the message, packed
--   {queue}:deadlines       zset: <stream>/<id> by deadline (ms)
--   {queue}:once            set: what the messages that are there are not to be written twice for
--   {queue}:unique:<key>    the name of the first message of that unique key
--   {queue}:dead            messages delivered too often
--   {queue}:cordoned        messages whose deadline had passed
--   {queue}:weights         hash: shard key -> weight set at run time
--   {queue}:passes:<group>  zset: shard key by its next pass (reads = tenants)
--   {queue}:heads:<group>   hash: stream -> shard key of the next message, as far as known (reads = tenants)
--   {queue}:groups          set: the groups that have read, in whichever stream
--   queue                   the default stream, of producers that know nothing of streams (the same slot)
-- A queue may have sections, each with all of these keys but notifications, unique keys and the default stream:
-- {queue}:<section>:meta.
--   {queue}:sections        set: those that were written to
--   {queue}:<section>:bell  wakes one of the readers that wait for the streams of sections themselves, for anything else
-- meta is a hash: streams, asked (when so many were last asked for), ttl, refreshed, and for each group
-- offset:<group>, empty:<group> (the newest entries when a pass found nothing), virtual:<group>, tidied:<group> (when
-- consumers were last forgotten). Times are milliseconds.
local meta = KEYS[1]
local prefix = string.sub(meta, 1, -5)
local queue, section = string.match(prefix, '^{(.-)}:(.-):?$')
local notifications = '{' .. queue .. '}:notifications'
local sections = '{' .. queue .. '}:sections'
local deadlines, once = prefix .. 'deadlines', prefix .. 'once'
local later, later_messages = prefix .. 'later', prefix .. 'later:messages'

local function integer(number)
    return string.format('%.0f', number)  -- tostring would round what has more than 14 digits
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function key_of(stream)
    if stream == 'default' then return queue end
    return prefix .. 's' .. stream
end

-- Consumers that know nothing of streams read the default stream in a group of its own name; so do we, beside them.
local function group_of(stream, group)
    if stream == 'default' then return queue end
    return group
end

-- 'stream' or 'none', or what stands in its place.
local function default_type()
    if section ~= '' then return 'none' end
    return redis.call('TYPE', queue)['ok']
end

-- The numbers of all streams, the default one last if it is there.
local function all_streams(count)
    local found = {}
    for stream = 0, count - 1 do found[#found + 1] = tostring(stream) end
    if default_type() == 'stream' then found[#found + 1] = 'default' end
    return found
end

local function damaged(key, why)
    error({err = 'FAIRLEAD_DAMAGED ' .. key .. ': ' .. why})
end

local function length(key)
    local found = redis.pcall('XLEN', key)
    if type(found) == 'table' then damaged(key, found.err) end
    return found
end

-- The text after each name of a flat array of names and values.
local function named(flat, wanted)
    for i = 1, #flat, 2 do
        if flat[i] == wanted then return flat[i + 1] end
    end
    return false
end

local function groups_of(key)
    local found = {}
    for _, flat in ipairs(redis.call('XINFO', 'GROUPS', key)) do
        found[#found + 1] = {
            name = named(flat, 'name'), last = named(flat, 'last-delivered-id'), pending = named(flat, 'pending'),
            lag = named(flat, 'lag')
        }
    end
    return found
end

-- Whether an entry's id is at most another.
local function at_most(id, other)
    local millis, sequence = string.match(id, '^(%d+)-(%d+)$')
    local other_millis, other_sequence = string.match(other, '^(%d+)-(%d+)$')
    millis, other_millis = tonumber(millis), tonumber(other_millis)
    if millis ~= other_millis then return millis < other_millis end
    return tonumber(sequence) <= tonumber(other_sequence)
end

local function newest(key)
    local found = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)
    if #found == 0 then return '0-0' end
    return found[1][1]
end

-- A key lives for at least `ttl` from now; a longer life is left to it.
local function touch(key, ttl)
    if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, integer(ttl * 9 / 8)) end
end

-- Whoever writes or reads keeps the whole queue alive, a quiet tenant's unread messages too. To touch every key each time
-- would be dear: it is done once in an eighth of the time, and so that it lasts for an eighth longer.
-- The default stream belongs to others: it gets no end from us, only a later one.
local function keep_alive(ttl, count, refreshed)
    if now - refreshed < ttl / 8 then return end
    local life = integer(ttl * 9 / 8)
    for stream = 0, count - 1 do redis.call('PEXPIRE', key_of(stream), life) end
    for _, last in ipairs({
        'bell', 'deadlines', 'once', 'later', 'later:messages', 'dead', 'cordoned', 'weights', 'groups'
    }) do
        redis.call('PEXPIRE', prefix .. last, life)
    end
    redis.call('PEXPIRE', notifications, life)
    redis.call('PEXPIRE', sections, life)
    if section == '' then redis.call('PEXPIRE', queue, life, 'GT') end
    redis.call('HSET', meta, 'refreshed', integer(now))
    redis.call('PEXPIRE', meta, life)
end

-- Groups do not come and go, nor is anything read, while a script ends messages.
local groups_seen = {}
local function groups_once(key)
    if not groups_seen[key] then groups_seen[key] = groups_of(key) end
    return groups_seen[key]
end

local readers = nil
local function all_readers()
    if not readers then readers = redis.call('SMEMBERS', prefix .. 'groups') end
    return readers
end

local has_marks = nil
local function forget_marks(stream, id, flat)
    if named(flat, 'fairlead:deadline') then redis.call('ZREM', deadlines, stream .. '/' .. id) end
    local mark = named(flat, 'fairlead:once')
    if mark then redis.call('SREM', once, mark) end
end

-- Take an entry out of its stream, whoever has it.
local function remove(stream, id, flat)
    local key = key_of(stream)
    for _, each in ipairs(groups_once(key)) do redis.call('XACK', key, each.name, id) end
    redis.call('XDEL', key, id)
    forget_marks(stream, id, flat)
end

-- Whether every group is through with an entry. One that has read elsewhere and not yet here has all of it before it.
local function is_settled(stream, id)
    local key, here = key_of(stream), {}
    for _, each in ipairs(groups_once(key)) do
        here[each.name] = true
        if not at_most(id, each.last) or #redis.call('XPENDING', key, each.name, id, id, 1) > 0 then return false end
    end
    for _, group in ipairs(all_readers()) do
        if not here[group_of(stream, group)] then return false end
    end
    return true
end

local function drop(stream, id)
    local key = key_of(stream)
    if has_marks == nil then has_marks = redis.call('EXISTS', deadlines, once) > 0 end
    if has_marks then
        local found = redis.call('XRANGE', key, id, id)[1]
        if found then forget_marks(stream, id, found[2]) end
    end
    redis.call('XDEL', key, id)
end

-- This group is through with an entry.
local function settle(stream, group, id)
    local key = key_of(stream)
    if redis.call('XACK', key, group_of(stream, group), id) == 0 then return 0 end
    local is_only_group = #groups_once(key) == 1 and #all_readers() <= 1
    if is_only_group or is_settled(stream, id) then drop(stream, id) end
    return 1
end

-- Whether this consumer, and no other, has claimed an entry.
local function is_held(stream, group, consumer, id)
    local found = redis.pcall('XPENDING', key_of(stream), group_of(stream, group), id, id, 1, consumer)
    return not found.err and #found > 0
end

-- Keep a copy in the stream of what nobody gets any more, for the life that the queue's keys have.
local function copy_aside(last, stream, id, flat, deliveries, ttl)
    local key = prefix .. last
    local copy = {'fairlead:id', stream .. '/' .. id, 'fairlead:deliveries', tostring(deliveries)}
    -- No more than Lua can pass on: writers of ours have fewer.
    for i = 1, math.min(#flat, 7000) do copy[#copy + 1] = flat[i] end
    local at = redis.call('XADD', key, 'MINID', '~', integer(now - ttl), '*', unpack(copy))
    touch(key, ttl)
    return {at, copy}
end

local function cordon(stream, id, flat, deliveries, ttl)
    local copy = copy_aside('cordoned', stream, id, flat, deliveries, ttl)
    remove(stream, id, flat)  -- only now: if there can be no copy, it stays
    return copy
end

local function is_past_deadline(flat)
    local deadline = named(flat, 'fairlead:deadline')
    return deadline and #deadline <= 14 and string.match(deadline, '^%d+$') and tonumber(deadline) <= now
end

-- What waits in a stream: of what is claimed nobody has to be afraid.
local waits = {}
local function waiting(key)
    if waits[key] then return waits[key] end
    local entries, pending = length(key), nil
    if entries > 0 then
        for _, each in ipairs(groups_of(key)) do
            if not pending or each.pending < pending then pending = each.pending end
        end
    end
    waits[key] = entries - (pending or 0)
    return waits[key]
end

local written = {}

-- Write a message into the shortest of its streams. Answers the stream and the entry's id.
local function put(streams, fields, ttl)
    local chosen, least = nil, nil
    for _, stream in ipairs(streams) do
        local found = waiting(key_of(stream))
        if not least or found < least then chosen, least = stream, found end
        if found == 0 then break end
    end
    local key = key_of(chosen)
    local id = redis.call('XADD', key, '*', unpack(fields))
    waits[key] = least + 1
    local deadline = named(fields, 'fairlead:deadline')
    if deadline then
        redis.call('ZADD', deadlines, deadline, chosen .. '/' .. id)
        touch(deadlines, ttl)
    end
    touch(key, ttl)
    written[#written + 1] = chosen
    return chosen, id
end

-- One reader is to look at everything: what it waits for by itself does not tell.
local function ring(key)
    redis.call('XADD', key, 'MAXLEN', 100, '*', 'b', '1')
end

-- So many streams there are to be at least.
local function grow(count, wanted)
    if wanted < count then return count end
    if wanted > count and section ~= '' then ring(prefix .. 'bell') end
    redis.call('HSET', meta, 'streams', wanted, 'asked', integer(now))
    return wanted
end

local function put_later(at, ticket, wanted, streams, fields, ttl)
    local first = redis.call('ZRANGE', later, 0, 0, 'WITHSCORES')[2]
    if section ~= '' and (not first or tonumber(at) < tonumber(first)) then ring(prefix .. 'bell') end
    redis.call('ZADD', later, at, ticket)
    redis.call('HSET', later_messages, ticket, cmsgpack.pack({wanted, streams, fields}))
    touch(later, ttl)
    touch(later_messages, ttl)
end

-- Wake who waits, and say where something was written, unless it is nearly everywhere.
-- No cap: of two writes between a reader's look and its waiting, both must be there. What is old wakes nobody.
local function notify(ttl)
    local streams = #written <= 8 and table.concat(written, ' ') or 'many'
    redis.call('XADD', notifications, 'MINID', '~', integer(now - 60000), '*', 's', section, 'in', streams)
    touch(notifications, ttl)
end

-- The streams of this section that were written to since a notification: all messages since then are in them.
-- False if that is not known: too much was written, or the notification is so old that others may have been trimmed.
local function written_since(after)
    if tonumber(string.match(after, '^%d+')) < now - 30000 then return false end
    local found, seen = {}, {}
    local news = redis.call('XRANGE', notifications, '(' .. after, '+', 'COUNT', 17)
    if #news > 16 then return false end
    for _, each in ipairs(news) do
        if each[2][2] == section then
            if each[2][4] == 'many' then return false end
            for stream in string.gmatch(each[2][4], '%S+') do
                if not seen[stream] then found[#found + 1] = stream end
                seen[stream] = true
            end
        end
    end
    return found
end
