-- Write messages, each into the shortest of its shard's streams, and wake the readers that wait.
-- ARGV: number of streams, ttl, time (ms) without a request for more streams after which their number shrinks; packed: shards (see
-- shards_of), and the messages, each an Entry of message.py. Return for each message its stream and id; or '' and its ticket, if it
-- is for later; or false and the name or mark of the earlier message, if it is a duplicate.
local wanted, ttl, shrink_after = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local known = redis.call('HMGET', meta, 'streams', 'asked', 'ttl', 'refreshed', 'rests')
local count, asked = tonumber(known[1] or 0), tonumber(known[2] or 0)

if wanted < count and now - asked >= shrink_after then
    -- The streams to remove must have no claimed messages either, because readers will not check
    -- these streams again.
    local left = 0
    for stream = wanted, count - 1 do left = left + length(key_of(stream)) end
    -- Let the streams expire, and do not delete them: a stream that is created again within a
    -- millisecond would give the same ids again.
    if left == 0 then
        for stream = wanted, count - 1 do redis.call('PEXPIRE', key_of(stream), integer(ttl * 9 / 8)) end
        count = wanted
    end
end
count = grow(count, wanted)
wake(known[5])
if ttl > tonumber(known[3] or 0) then
    redis.call('HSET', meta, 'ttl', integer(ttl))
    known[4] = 0  -- keys that expire already must live as long
else
    ttl = tonumber(known[3])
end

local function place(due, ticket, streams, fields)
    if due ~= '' and tonumber(due) > now then
        put_later(due, ticket, wanted, streams, fields)
        return {'', ticket}
    end
    return {put(streams, fields)}
end

local function write(due, ticket, mark, unique, window, name, streams, fields)
    if unique == '' and mark == '' then return place(due, ticket, streams, fields) end
    local unique_key = '{' .. queue .. '}:unique:' .. unique
    if unique ~= '' then
        local first = redis.call('SET', unique_key, name, 'NX', 'GET', 'PX', window)
        if first then return {false, first} end
    end
    if mark ~= '' and redis.call('SADD', once, mark) == 0 then return {false, mark} end
    local is_placed, found = pcall(place, due, ticket, streams, fields)
    if not is_placed then
        -- A damaged key has stopped the write. Without its message, a key or mark would refuse the next write too.
        if unique ~= '' then redis.call('DEL', unique_key) end
        if mark ~= '' then redis.call('SREM', once, mark) end
        error(found)
    end
    return found
end

local shards, entries = unpack(cmsgpack.unpack(ARGV[4]))
local streams_of = shards_of(shards)
local results = {}
for i, entry in ipairs(entries) do
    local fields, shard_key, due, ticket, mark, unique, window, name = unpack(entry)
    results[i] = write(due, ticket, mark, unique, window, name, streams_of[shard_key], fields)
end
notify(ttl)
if section ~= '' then
    if redis.call('SADD', sections, section) == 1 then
        for _, other in ipairs(redis.call('SMEMBERS', sections)) do poke('{' .. queue .. '}:' .. other .. ':notifier') end
    end
end
keep_alive(ttl, count, tonumber(known[4] or 0))
return results
