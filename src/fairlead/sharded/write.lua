-- Write messages, each into the shortest of its shard's streams, and wake the readers that wait.
-- ARGV: number of streams, ttl, time (ms) without a request for more streams after which their number shrinks; packed: shards (see
-- shards_of), and the messages, each an Entry of message.py. Return for each message its stream and id; or '' and its ticket, if it
-- is for later.
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

local function write(due, ticket, streams, fields)
    if due ~= '' and tonumber(due) > now then
        put_later(due, ticket, wanted, streams, fields)
        return {'', ticket}
    end
    return {put(streams, fields)}
end

local shards, entries = unpack(cmsgpack.unpack(ARGV[4]))
local streams_of = shards_of(shards)
local results = {}
for i, entry in ipairs(entries) do
    local fields, shard_key, due, ticket = unpack(entry)
    results[i] = write(due, ticket, streams_of[shard_key], fields)
end
notify(ttl)
keep_alive(ttl, count, tonumber(known[4] or 0))
return results
