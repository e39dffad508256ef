-- What all scripts of a sharded queue share; it stands before each of them.
-- KEYS[1] is {queue}:meta. Every other key is the same text with another end, so that all lie in one hash slot:
--   {queue}:s<i>            a stream of messages       {queue}:notifications  wakes readers: one small entry a write
--   {queue}:deadlines       zset: <stream>/<id> by deadline (ms)
--   {queue}:dead            messages delivered too often
--   {queue}:cordoned        messages whose deadline had passed
--   {queue}:weights         hash: shard key -> weight set at run time
--   {queue}:passes:<group>  zset: shard key by its next pass (reads = tenants)
--   {queue}:heads:<group>   hash: stream -> shard key of the next message, as far as known (reads = tenants)
--   {queue}:groups          set: the groups that have read, in whichever stream
--   queue                   the default stream, of producers that know nothing of streams (the same slot)
-- meta is a hash: streams, asked (when so many were last asked for), ttl, refreshed, and for each group
-- offset:<group>, empty:<group> (the newest entries when a pass found nothing), virtual:<group>. Times are milliseconds.
local meta = KEYS[1]
local prefix = string.sub(meta, 1, -5)
local queue = string.sub(prefix, 2, -3)
local notifications = prefix .. 'notifications'
local deadlines = prefix .. 'deadlines'

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

local function has_default()
    return redis.call('TYPE', queue)['ok'] == 'stream'
end

-- The numbers of all streams, the default one last if it is there.
local function all_streams(count)
    local found = {}
    for stream = 0, count - 1 do found[#found + 1] = tostring(stream) end
    if has_default() then found[#found + 1] = 'default' end
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
    local later = integer(ttl * 9 / 8)
    for stream = 0, count - 1 do redis.call('PEXPIRE', key_of(stream), later) end
    for _, last in ipairs({'notifications', 'deadlines', 'dead', 'cordoned', 'weights', 'groups'}) do
        redis.call('PEXPIRE', prefix .. last, later)
    end
    redis.call('PEXPIRE', queue, later, 'GT')
    redis.call('HSET', meta, 'refreshed', integer(now))
    redis.call('PEXPIRE', meta, later)
end

local function forget_deadline(stream, id, flat)
    if named(flat, 'fairlead:deadline') then redis.call('ZREM', deadlines, stream .. '/' .. id) end
end

-- Take an entry out of its stream, whoever has it.
local function remove(stream, id, flat)
    local key = key_of(stream)
    for _, each in ipairs(groups_of(key)) do redis.call('XACK', key, each.name, id) end
    redis.call('XDEL', key, id)
    forget_deadline(stream, id, flat)
end

-- Whether every group is through with an entry. One that has read elsewhere and not yet here has all of it before it.
local function is_settled(stream, id)
    local key, here = key_of(stream), {}
    for _, each in ipairs(groups_of(key)) do
        here[each.name] = true
        if not at_most(id, each.last) or #redis.call('XPENDING', key, each.name, id, id, 1) > 0 then return false end
    end
    for _, group in ipairs(redis.call('SMEMBERS', prefix .. 'groups')) do
        if not here[group_of(stream, group)] then return false end
    end
    return true
end

local function drop_if_settled(stream, id)
    if not is_settled(stream, id) then return end
    local key = key_of(stream)
    local found = redis.call('XRANGE', key, id, id)
    redis.call('XDEL', key, id)
    if #found > 0 then forget_deadline(stream, id, found[1][2]) end
end

-- This group is through with an entry.
local function settle(stream, group, id)
    if redis.call('XACK', key_of(stream), group_of(stream, group), id) == 0 then return 0 end
    drop_if_settled(stream, id)
    return 1
end

-- Keep a copy in the stream of what nobody gets any more, for the life that the queue's keys have.
local function copy_aside(last, stream, id, flat, deliveries, ttl)
    local key = prefix .. last
    local copy = {'fairlead:id', stream .. '/' .. id, 'fairlead:deliveries', tostring(deliveries)}
    for i = 1, #flat do copy[#copy + 1] = flat[i] end
    local at = redis.call('XADD', key, 'MINID', '~', integer(now - ttl), '*', unpack(copy))
    touch(key, ttl)
    return {at, copy}
end

local function cordon(stream, id, flat, deliveries, ttl)
    remove(stream, id, flat)
    return copy_aside('cordoned', stream, id, flat, deliveries, ttl)
end

local function is_past_deadline(flat)
    local deadline = named(flat, 'fairlead:deadline')
    return deadline and #deadline <= 14 and string.match(deadline, '^%d+$') and tonumber(deadline) <= now
end
