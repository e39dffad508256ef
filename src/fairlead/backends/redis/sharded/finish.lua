-- End several claims of one consumer in one atomic script. Do not change claims of other consumers.
-- ARGV: group, consumer, ttl, number of streams, number of claims; for each claim: stream, entry, kind of end, then for
--   done   no more arguments
--   again  number of streams of its shard, these streams, number of fields and values, these fields: write the message
--          again, with its mark if it has one
--   later  time (ms), ticket, and then as for again: write the message again at that time
--   dead   number of fields and values, these fields: write a dead letter with these fields
-- Return for each claim 1 if it belonged to this consumer, else 0. If the messages are large or many, return only the first results, and
-- leave the other claims as they are.
local group, consumer, ttl, wanted = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local known = redis.call('HMGET', meta, 'streams', 'ttl', 'refreshed')
ttl = tonumber(known[2] or ttl)
redis.call('HDEL', meta, '')  -- a full server lets a script write whose first write needs no memory

local at = 6
local function next_one()
    at = at + 1
    return ARGV[at - 1]
end
local function next_list()
    local found = {}
    for i = 1, tonumber(next_one()) do found[i] = next_one() end
    return found
end

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
for i = 1, tonumber(ARGV[5]) do
    local stream, id, how = next_one(), next_one(), next_one()
    local due, ticket, streams, fields
    if how == 'later' then due, ticket = next_one(), next_one() end
    if how == 'later' or how == 'again' then streams = next_list() end
    if how ~= 'done' then fields = next_list() end
    local is_ours = is_held(stream, group, consumer, id)
    if is_ours then
        -- End the claim last, so that the message is not lost if a damaged key stops the script.
        if how == 'dead' then dead(stream, id, fields) end
        if how == 'later' then put_later(due, ticket, wanted, streams, fields) end
        if how == 'again' then put(streams, fields) end
        settle(stream, group, id)
        if streams then
            has_news = true
            local mark = named(fields, 'fairlead:once')
            if mark then redis.call('SADD', once, mark) end
            grow(tonumber(known[1] or 0), wanted)
        end
    end
    results[i] = is_ours and 1 or 0
    if bytes >= MOST_BYTES or buried >= MOST_BURIED then break end
end
if has_news then notify(ttl) end
keep_alive(ttl, tonumber(known[1] or 0), tonumber(known[3] or 0))
return results
