-- Common part of all scripts of a sharded queue; each script begins with it.
-- KEYS[1] is {queue}:meta. All other keys begin with the same hash tag {queue}, so that they lie in one hash slot:
--   {queue}:s<i>            a stream of messages
--   {queue}:notifications   stream: wakes readers; one small entry for each write
--   {queue}:later           zset: tickets of messages for later, by the time (ms) at which they are due
--   {queue}:later:messages  hash: ticket -> the message, packed
--   {queue}:deadlines       zset: <stream>/<id> by deadline (ms)
--   {queue}:dead            stream: dead letters, messages delivered too often
--   {queue}:dead:heads      stream: small heads of the dead letters, under the ids of the letters
--   {queue}:dead:names      zset, in the order of texts: <id of a message> <id of its dead letter>
--   {queue}:cordoned        stream: messages whose deadline had passed
--   {queue}:weights         hash: shard key -> weight set at run time
--   {queue}:waiting:<group>  zset, in the order of texts: the messages that the group has not read, by tenant and then by age
--                            (reads = tenants; see index.lua)
--   {queue}:tenants:<group>  zset: tenants with such messages, by the start tag of the next one
--   {queue}:passes:<group>   zset: other tenants that are ahead of their share, by the start tag of their next message
--   {queue}:returned:<group>  zset: <stream>/<id> of messages that consumers gave back, by the time (ms) of the next delivery
--   {queue}:lasting         set: streams that have been written to since the queue was empty, which have no time to live
--   {queue}:groups          set: groups that have read any stream
--   {queue}:consumers:<group>  zset: consumers by the time (ms) of their last read, so that silent ones are dropped
--   queue                   the default stream, for producers of a plain stream (in the same slot)
-- meta is a hash: streams (their number), asked (time at which a client last asked for that number), ttl, refreshed, rests
-- (0 while the queue has messages, 1 while it is empty and its keys expire), kept:dead and kept:cordoned (see old_copies), dropping and
-- uncordoning (the id up to which old ones are dropped), and for each group offset:<group>, empty:<group> (newest entries when a scan found no message), looked:<group>
-- (time of the last such scan of all streams), virtual:<group> (virtual time), lowered:<group> (see lower_tags), indexed:<group> (the notification up to which all messages are in the index),
-- reclaim:<group> (where the next reclaim begins) and round:<group> (time at which the last long round of reclaims began). Times
-- are in milliseconds.
-- No run of a script looks at more than a stated number of things, whatever the queue holds; the number of its streams and
-- that of its groups are the only ones that lengthen a run. The caller runs a script again for the rest.
local meta = KEYS[1]
local prefix = string.sub(meta, 1, -5)
local queue = string.match(prefix, '^{(.-)}:$')
local notifications, deadlines, lasting = prefix .. 'notifications', prefix .. 'deadlines', prefix .. 'lasting'
local later, later_messages = prefix .. 'later', prefix .. 'later:messages'
local dead_letters, dead_heads, dead_names = prefix .. 'dead', prefix .. 'dead:heads', prefix .. 'dead:names'
local RETURNED = 'fairlead:returned'  -- the consumer that holds messages which were given back
local WAITING = 'fairlead:waiting'  -- the consumer that holds messages which wait in the index of a group

-- Limits of one run of a script, so that it does not hold the server for long: messages, and bytes of messages.
local MOST, MOST_BYTES = 500, 1000000
local MOST_BURIED = 50  -- messages that become dead letters or cordoned ones, which need more commands than others

local function integer(number)
    return string.format('%.0f', number)  -- tostring rounds numbers of more than 14 digits
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function key_of(stream)
    if stream == 'default' then return queue end
    return prefix .. 's' .. stream
end

-- Consumers of the plain stream read it in a group with the name of the stream, so read it in the
-- same group here.
local function group_of(stream, group)
    if stream == 'default' then return queue end
    return group
end

-- Return the type of the value in the key of the default stream: 'stream', 'none' or another type.
local function default_type()
    return redis.call('TYPE', queue)['ok']
end

-- Return the numbers of all streams; the default stream is the last one, if it exists.
local function all_streams(count)
    local found = {}
    for stream = 0, count - 1 do found[#found + 1] = tostring(stream) end
    if default_type() == 'stream' then found[#found + 1] = 'default' end
    return found
end

-- Raise the error of a command. Only a value of a foreign type proves that a key is damaged; any other error, such as
-- READONLY, tells the state of the server.
local function fail(key, failed)
    if string.find(failed.err, 'WRONGTYPE', 1, true) then
        error({err = 'FAIRLEAD_DAMAGED ' .. key .. ': ' .. failed.err})
    end
    error({err = failed.err})
end

local has_entries = false  -- whether any stream that this script has looked at has entries
local function length(key)
    local found = redis.pcall('XLEN', key)
    if type(found) == 'table' then fail(key, found) end
    if found > 0 then has_entries = true end
    return found
end

-- Return the value that follows a name in an array of alternating names and values.
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
            lag = named(flat, 'lag'), consumers = named(flat, 'consumers')
        }
    end
    return found
end

-- Return how many of a stream's entries a group has not read. Another client may acknowledge entries and leave them; then the
-- lag tells, if Redis knows it.
local function unread(entries, each)
    return math.min(each.lag or math.huge, entries - each.pending)
end

-- Return whether one entry id is less than or equal to another.
local function at_most(id, other)
    -- Compare digits: the numbers of a plain stream's producer may be greater than 2^53.
    local function key(number) return string.format('%02d', #number) .. number end
    local millis, sequence = string.match(id, '^(%d+)-(%d+)$')
    local other_millis, other_sequence = string.match(other, '^(%d+)-(%d+)$')
    if millis ~= other_millis then return key(millis) < key(other_millis) end
    return key(sequence) <= key(other_sequence)
end

local function newest(key)
    local found = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)
    if #found == 0 then return '0-0' end
    return found[1][1]
end

-- Make a key expire no earlier than `ttl` ms from now. Only for keys without messages, whose loss costs no more than time.
local function touch(key, ttl)
    if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, integer(ttl * 9 / 8)) end
end

-- A queue with messages, dead letters or cordoned messages never expires, however long its server is down and whatever the
-- clock says: no key that they need has a time to live. A reader that finds the queue empty sets the time to live (rest), and
-- the next write removes it again (wake).
local function needed()
    local found = {meta, prefix .. 'groups', prefix .. 'weights', dead_letters, dead_heads, dead_names}
    for _, group in ipairs(redis.call('SMEMBERS', prefix .. 'groups')) do
        found[#found + 1] = prefix .. 'consumers:' .. group
    end
    return found
end

-- Let a queue without entries expire, unless it has other messages. An empty queue has no deadlines; what is left of them
-- belongs to entries that were removed by other means.
local function rest(ttl)
    if redis.call('ZCARD', later) > 0 then return end
    local cordoned = prefix .. 'cordoned'
    if length(dead_letters) > 0 or length(cordoned) > 0 then return end
    local life = integer(ttl * 9 / 8)
    local all = redis.call('SMEMBERS', prefix .. 'groups')
    for _, each in ipairs(#all > 1 and all or {}) do  -- other groups may have places of messages that are gone
        redis.call('UNLINK', prefix .. 'waiting:' .. each, prefix .. 'tenants:' .. each)
    end
    redis.call('UNLINK', deadlines, cordoned)
    redis.call('HSET', meta, 'rests', 1)
    for _, stream in ipairs(redis.call('SMEMBERS', lasting)) do redis.call('PEXPIRE', key_of(stream), life) end
    redis.call('DEL', lasting)
    for _, key in ipairs(needed()) do redis.call('PEXPIRE', key, life) end
end

-- Remove the time to live of the keys that a message needs, if the queue rests or is new. `rests`: this field of meta.
local is_awake = false
local function wake(rests)
    if is_awake then return end
    is_awake = true
    if (rests or redis.call('HGET', meta, 'rests')) == '0' then return end
    redis.call('HSET', meta, 'rests', 0)  -- first, so that a full server refuses the message
    for _, key in ipairs(needed()) do redis.call('PERSIST', key) end
end

-- Let a key expire that is written without a message, unless the queue has messages.
local function touch_at_rest(key, ttl)
    if redis.call('HGET', meta, 'rests') ~= '0' then touch(key, ttl) end
end

-- Note the newest copy of this round, and return the id up to which copies are older than `ttl` of use, or nil. A clock may
-- jump, so count rounds of an eighth of the ttl instead: keep the newest entry of each of the last ten rounds, and drop what is
-- older than all of them.
local function old_copies(last)
    local field, rounds = 'kept:' .. last, {}
    for id in string.gmatch(redis.call('HGET', meta, field) or '', '%S+') do rounds[#rounds + 1] = id end
    local found = redis.call('XREVRANGE', prefix .. last, '+', '-', 'COUNT', 1)[1]
    if not found then
        if #rounds > 0 then redis.call('HDEL', meta, field) end
        return nil
    end
    rounds[#rounds + 1] = found[1]
    local through = #rounds > 10 and table.remove(rounds, 1) or nil
    redis.call('HSET', meta, field, table.concat(rounds, ' '))
    return through
end

-- Return the least id above this one.
local function id_after(id)
    -- Add to the digits: the numbers of another writer may be greater than 2^53.
    local function one_more(number)
        local nines = #string.match(number, '9*$')
        local first = string.sub(number, 1, #number - nines)
        if first == '' then return '1' .. string.rep('0', nines) end
        return string.sub(first, 1, -2) .. string.char(string.byte(first, -1) + 1) .. string.rep('0', nines)
    end
    local millis, sequence = string.match(id, '^(%d+)-(%d+)$')
    if sequence == '18446744073709551615' then return one_more(millis) .. '-0' end
    return millis .. '-' .. one_more(sequence)
end

-- Remove the entries of a stream up to an id, about a thousand in one run. Return whether none of them is left.
local function trim(key, through)
    local id = id_after(through)
    if redis.call('XTRIM', key, 'MINID', '~', id, 'LIMIT', 1000) > 0 then return false end
    redis.call('XTRIM', key, 'MINID', id)  -- only a part of the first node, of about a hundred entries, is left
    return true
end

-- Drop cordoned messages that are older than `ttl` of use. Return whether none of them is left.
local function tidy_cordoned()
    local through = redis.call('HGET', meta, 'uncordoning')
    if not through then
        through = old_copies('cordoned')
        if not through then return true end
        redis.call('HSET', meta, 'uncordoning', through)
    end
    if not trim(prefix .. 'cordoned', through) then return false end
    redis.call('HDEL', meta, 'uncordoning')
    return true
end

-- Return the beginning of a tenant's members of an index. With its length first, none is the beginning of another's.
local function of_tenant(tenant)
    return #tenant .. ':' .. tenant .. ':'
end

-- Return the member of a dead letter in the index by the ids of messages.
local function name_of(head, position)
    return named(head, 'fairlead:id') .. ' ' .. position
end

-- Remove a dead letter with its head and name; letters leave by this function only. `head`: the fields of its head, if known.
-- Return whether there was such a letter.
local function drop_letter(position, head)
    if not head then
        local found = redis.call('XRANGE', dead_heads, position, position)[1]
        head = found and found[2]
    end
    if head then
        redis.call('ZREM', dead_names, name_of(head, position))
        redis.call('XDEL', dead_heads, position)
    end
    return redis.call('XDEL', dead_letters, position) == 1
end

-- Drop dead letters that are older than `ttl` of use, a hundred in one run of a script. Return whether none of them is left.
local function tidy_letters()
    local through = redis.call('HGET', meta, 'dropping')
    if not through then
        through = old_copies('dead')
        if not through then return true end
        redis.call('HSET', meta, 'dropping', through)
    end
    local old = redis.call('XRANGE', dead_heads, '-', through, 'COUNT', 100)
    for _, each in ipairs(old) do drop_letter(each[1], each[2]) end
    if #old == 100 then return false end
    if not trim(dead_letters, through) then return false end  -- letters that another writer added have no heads
    redis.call('HDEL', meta, 'dropping')
    return true
end

-- Every write and read extends the life of the keys that expire. To touch every key each time is too expensive, so do this
-- once in an eighth of the ttl, and extend by an eighth more. Keys without a time to live stay as they are. The default stream
-- belongs to its producers, so never shorten its life. A clock that was set back must not stop the rounds.
local function keep_alive(ttl, count, refreshed)
    if now >= refreshed and now - refreshed < ttl / 8 then return end
    -- While old letters are left, the next calls go on with them. A queue with letters has no keys that expire too early.
    if not tidy_letters() or not tidy_cordoned() then return end
    local life = integer(ttl * 9 / 8)
    for stream = 0, count - 1 do redis.call('PEXPIRE', key_of(stream), life, 'XX') end
    for _, key in ipairs(needed()) do redis.call('PEXPIRE', key, life, 'XX') end
    redis.call('PEXPIRE', notifications, life)
    redis.call('PEXPIRE', queue, life, 'GT')
    redis.call('HSET', meta, 'refreshed', integer(now))
end

-- No group changes while a script ends messages, so read the groups once.
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

local has_deadlines = nil
local function drop_deadline(stream, id, flat)
    if named(flat, 'fairlead:deadline') then redis.call('ZREM', deadlines, stream .. '/' .. id) end
end

-- Return the member of a message in the index of a group (see index.lua). The number of digits before each number makes the
-- order of texts that of the numbers.
local function member_of(tenant, stream, id)
    local millis, sequence = string.match(id, '^(%d+)-(%d+)$')
    return of_tenant(tenant) .. string.format('%02d%s%02d%s/%s', #millis, millis, #sequence, sequence, stream)
end

local function member_for(stream, id, flat)
    return member_of(named(flat, 'fairlead:key') or '', stream, id)
end

-- Remove an entry from its stream, even if a consumer has claimed it.
local function remove(stream, id, flat)
    local key = key_of(stream)
    for _, each in ipairs(groups_once(key)) do
        -- A caller that does not know the groups has not declared the key, which a cluster may be moving.
        redis.pcall('ZREM', prefix .. 'waiting:' .. each.name, member_for(stream, id, flat))
        redis.call('XACK', key, each.name, id)
    end
    redis.call('XDEL', key, id)
    drop_deadline(stream, id, flat)
end

-- Return whether every group has acknowledged an entry. A group that has read other streams, but
-- not yet this one, still needs every entry here.
-- `leaving`: a group that does not count any more.
local function is_settled(stream, id, leaving)
    local key, here = key_of(stream), {}
    for _, each in ipairs(groups_once(key)) do
        here[each.name] = true
        if each.name ~= leaving
            and (not at_most(id, each.last) or #redis.call('XPENDING', key, each.name, id, id, 1) > 0) then
            return false
        end
    end
    for _, group in ipairs(all_readers()) do
        if not here[group_of(stream, group)] then return false end
    end
    return true
end

-- Remove entries of a stream that all groups have acknowledged.
local function drop(stream, ids)
    local key = key_of(stream)
    if has_deadlines == nil then has_deadlines = redis.call('EXISTS', deadlines) > 0 end
    for _, id in ipairs(has_deadlines and ids or {}) do
        local found = redis.call('XRANGE', key, id, id)[1]
        if found then drop_deadline(stream, id, found[2]) end
    end
    if #ids > 0 then redis.call('XDEL', key, unpack(ids)) end
end

-- Acknowledge entries of a stream for this group, at most MOST, and drop those that all groups have acknowledged. The group must
-- hold all of them, or there must be only one.
local function settle(stream, group, ids)
    local key = key_of(stream)
    if redis.call('XACK', key, group_of(stream, group), unpack(ids)) == 0 then return 0 end
    local settled = ids
    if #groups_once(key) ~= 1 or #all_readers() > 1 then
        settled = {}
        for _, id in ipairs(ids) do
            if is_settled(stream, id) then settled[#settled + 1] = id end
        end
    end
    drop(stream, settled)
    return #ids
end

-- Return whether this consumer has claimed an entry.
local function is_held(stream, group, consumer, id)
    local found = redis.pcall('XPENDING', key_of(stream), group_of(stream, group), id, id, 1, consumer)
    return not found.err and #found > 0
end

-- Return the consumers that hold entries of a stream, by entry; nil if its claims cannot be read. `wanted`: the only consumer
-- to look at, or nil. Entries that lie together need one command, in any order.
local function holders_of(stream, group, ids, wanted)
    local found, room = {}, 2 * #ids
    for i, id in ipairs(ids) do
        if not found[id] then
            local count = math.max(1, math.min(room, #ids - i + 1))
            local claims = redis.pcall(unpack({'XPENDING', key_of(stream), group_of(stream, group), id, '+', count, wanted}))
            if claims.err then return nil end
            for _, each in ipairs(claims) do found[each[1]] = each[2] end
            room = room - #claims
        end
    end
    return found
end

-- Return the entries of each stream, and the streams in their order. `places`: stream and entry of each message, in turn, from
-- this one on.
local function by_stream(places, from)
    local ids, streams = {}, {}
    for i = from, #places, 2 do
        local stream = places[i]
        if not ids[stream] then
            ids[stream] = {}
            streams[#streams + 1] = stream
        end
        table.insert(ids[stream], places[i + 1])
    end
    return ids, streams
end

-- Return those of these entries that a consumer holds, each once.
local function those_held(ids, holders)
    local held = {}
    for _, id in ipairs(ids) do
        if holders[id] then held[#held + 1] = id end
        holders[id] = nil
    end
    return held
end

-- Return the bytes of an entry's fields.
local function bytes_of(flat)
    local bytes = 0
    for i = 1, #flat do bytes = bytes + #flat[i] end
    return bytes
end

-- Keep a copy of a message that is no longer delivered, for `ttl` of use (see old_copies).
local function keep_copy(last, stream, id, flat, deliveries)
    local copy = {'fairlead:id', stream .. '/' .. id, 'fairlead:deliveries', tostring(deliveries)}
    -- Limit the number of fields to what unpack can pass; Fairlead's own writers use fewer.
    for i = 1, math.min(#flat, 7000) do copy[#copy + 1] = flat[i] end
    wake()
    return {redis.call('XADD', prefix .. last, '*', unpack(copy)), copy}
end

-- Return the head of a dead letter: the size of the letter (bytes), and its fields of at most 1000 bytes, 3000 bytes in all.
local function head_of(letter)
    local head, size, room = {letter[1], letter[2], letter[3], letter[4], 'fairlead:size', ''}, 0, 3000
    for i = 1, #letter, 2 do
        local bytes = #letter[i] + #letter[i + 1]
        size = size + bytes
        if i > 4 and bytes <= 1000 and bytes <= room then
            head[#head + 1] = letter[i]
            head[#head + 1] = letter[i + 1]
            room = room - bytes
        end
    end
    head[6] = integer(size)
    return head
end

-- Make a message a dead letter.
local function bury(stream, id, flat, deliveries)
    -- Check the keys first, so that a damaged key leaves no half of a letter.
    length(dead_letters)
    length(dead_heads)
    local names = redis.pcall('ZCARD', dead_names)
    if type(names) == 'table' then fail(dead_names, names) end
    local position, letter = unpack(keep_copy('dead', stream, id, flat, deliveries))
    local head = head_of(letter)
    if redis.pcall('XADD', dead_heads, position, unpack(head)).err then
        -- The stream of letters was lost, and the clock was set back: go on after the newest head.
        redis.call('XDEL', dead_letters, position)
        position = id_after(named(redis.call('XINFO', 'STREAM', dead_heads), 'last-generated-id'))
        redis.call('XADD', dead_letters, position, unpack(letter))
        redis.call('XADD', dead_heads, position, unpack(head))
    end
    redis.call('ZADD', dead_names, 0, name_of(head, position))
end

local function cordon(stream, id, flat, deliveries)
    local copy = keep_copy('cordoned', stream, id, flat, deliveries)
    remove(stream, id, flat)  -- last, so that a message without a copy stays
    return copy
end

local function is_past_deadline(flat)
    local deadline = named(flat, 'fairlead:deadline')
    return deadline and #deadline <= 14 and string.match(deadline, '^%d+$') and tonumber(deadline) <= now
end

-- Return the number of waiting messages of a stream, without claimed ones, which delay no message.
local waits, was_empty = {}, {}
local function waiting(key)
    if waits[key] then return waits[key] end
    local entries, most = length(key), nil
    was_empty[key] = entries == 0
    for _, each in ipairs(entries > 0 and groups_of(key) or {}) do
        most = math.max(most or 0, unread(entries, each))
    end
    waits[key] = most or entries
    return waits[key]
end

local written = {}

-- Write a message into the shortest of its streams. Return the stream and the id of the entry.
local function put(streams, fields)
    local chosen, least = nil, nil
    for _, stream in ipairs(streams) do
        local found = waiting(key_of(stream))
        if not least or found < least then chosen, least = stream, found end
        if found == 0 then break end
    end
    local key = key_of(chosen)
    wake()
    local id = redis.call('XADD', key, '*', unpack(fields))
    waits[key] = least + 1
    local deadline = named(fields, 'fairlead:deadline')
    if deadline then redis.call('ZADD', deadlines, deadline, chosen .. '/' .. id) end
    has_entries = true
    if was_empty[key] then
        redis.call('PERSIST', key)
        redis.call('SADD', lasting, chosen)
        was_empty[key] = false
    end
    written[#written + 1] = chosen
    return chosen, id
end

-- Return the streams of each shard key. `shards`: a key and its streams, in turn.
local function shards_of(shards)
    local found = {}
    for i = 1, #shards, 2 do found[shards[i]] = shards[i + 1] end
    return found
end

-- Raise the number of streams to `wanted` if it is lower.
local function grow(count, wanted)
    if wanted < count then return count end
    redis.call('HSET', meta, 'streams', wanted, 'asked', integer(now))
    return wanted
end

local function put_later(at, ticket, wanted, streams, fields)
    wake()
    redis.call('ZADD', later, at, ticket)
    redis.call('HSET', later_messages, ticket, cmsgpack.pack({wanted, streams, fields}))
end

-- Remove a message for later. Return 1, or 0 if there was none.
local function drop_later(ticket)
    local was_there = redis.call('ZREM', later, ticket)
    redis.call('HDEL', later_messages, ticket)
    return was_there
end

-- Wake the waiting readers, and name the streams that were written to, unless there are many. Do not
-- limit the length of the stream of notifications, because a reader must find all writes between its
-- check and its wait. Old notifications wake no reader.
local function notify(ttl)
    local streams = #written <= 8 and table.concat(written, ' ') or 'many'
    local id = redis.call('XADD', notifications, 'MINID', '~', integer(now - 60000), '*', 'in', streams)
    -- After a jump of the clock ahead and back, all ids are in the future, and none is old. A reader does not trust these
    -- (written_since), so it needs only the newest.
    if tonumber(string.match(id, '^%d+')) > now then redis.call('XTRIM', notifications, 'MAXLEN', '~', 1000) end
    touch(notifications, ttl)
end

-- Return the streams that were written to after a notification; they contain all
-- messages written since then. Return false if the streams are unknown, because too many were written
-- to or notifications may have been trimmed.
local function written_since(after)
    local at = tonumber(string.match(after, '^%d+'))
    if at < now - 30000 or at > now then return false end
    local found, seen = {}, {}
    local news = redis.call('XRANGE', notifications, '(' .. after, '+', 'COUNT', 17)
    if #news > 16 then return false end
    for _, each in ipairs(news) do
        if each[2][2] == 'many' then return false end
        for stream in string.gmatch(each[2][2], '%S+') do
            if not seen[stream] then found[#found + 1] = stream end
            seen[stream] = true
        end
    end
    return found
end
