-- End several claims of one consumer in one atomic script. Do not change claims of other consumers.
-- ARGV: group, consumer, ttl, number of streams; packed: shards (see shards_of), and the claims. Each claim is stream, entry, kind
-- of end, and for all kinds but done an Entry of message.py:
--   done   end the claim
--   again  write the entry too, with its mark if it has one
--   later  write the entry at its time
--   dead   write a dead letter with the fields of the entry
-- Return for each claim 1 if it belonged to this consumer, else 0. If the messages are large or many, return only the first results, and
-- leave the other claims as they are.
local group, consumer, ttl, wanted = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local known = redis.call('HMGET', meta, 'streams', 'ttl', 'refreshed')
ttl = tonumber(known[2] or ttl)
redis.call('HDEL', meta, '')  -- a full server lets a script write whose first write needs no memory
local shards, claims = unpack(cmsgpack.unpack(ARGV[5]))
local streams_of = shards_of(shards)

local bytes, buried = 0, 0
local function dead(stream, id, fields)
    local key = key_of(stream)
    local entry = redis.call('XRANGE', key, id, id)[1]
    if not entry then return end  -- its producer has trimmed it away
    local counted = redis.call('XPENDING', key, group_of(stream, group), id, id, 1)[1][4]
    bytes, buried = bytes + bytes_of(entry[2]), buried + 1
    bury(stream, id, entry[2], counted, fields)
end

local results, has_news = {}, false

-- End claims that are done: those from one to another of this number.
local function end_done(first, last)
    local places = {}
    for i = first, last do
        places[#places + 1] = claims[i][1]
        places[#places + 1] = claims[i][2]
    end
    local ids_of, streams = by_stream(places, 1)
    local is_ended = {}
    for _, stream in ipairs(streams) do
        local ids = those_held(ids_of[stream], holders_of(stream, group, ids_of[stream], consumer) or {})
        is_ended[stream] = {}
        for _, id in ipairs(ids) do is_ended[stream][id] = true end
        if #ids > 0 then settle(stream, group, ids) end
    end
    for i = first, last do
        local of_stream, id = is_ended[claims[i][1]], claims[i][2]
        results[i] = of_stream[id] and 1 or 0
        of_stream[id] = nil
    end
end

local function end_other(i)
    local stream, id, how, entry = unpack(claims[i])
    local fields, shard_key, due, ticket = unpack(entry)
    local is_ours = is_held(stream, group, consumer, id)
    if is_ours then
        -- End the claim last, so that the message is not lost if a damaged key stops the script.
        if how == 'dead' then dead(stream, id, fields) end
        if how == 'later' then put_later(due, ticket, wanted, streams_of[shard_key], fields) end
        if how == 'again' then put(streams_of[shard_key], fields) end
        settle(stream, group, {id})
        if how ~= 'dead' then
            has_news = true
            local mark = named(fields, 'fairlead:once')
            if mark then redis.call('SADD', once, mark) end
            grow(tonumber(known[1] or 0), wanted)
        end
    end
    results[i] = is_ours and 1 or 0
end

local i = 1
while i <= #claims and bytes < MOST_BYTES and buried < MOST_BURIED do
    local first = i
    while i <= #claims and claims[i][3] == 'done' do i = i + 1 end
    if i > first then
        end_done(first, i - 1)
    else
        end_other(i)
        i = i + 1
    end
end
if has_news then notify(ttl) end
keep_alive(ttl, tonumber(known[1] or 0), tonumber(known[3] or 0))
return results
