-- Give claimed messages back, so that a reader of the group gets them at once or after a delay. Do not change claims of other
-- consumers. ARGV: group, consumer, ttl, delay (ms), deliveries after which a message becomes a dead letter, then stream and
-- entry of each message. Return for each message 1 if the consumer had claimed it, else 0. If the messages are large or many, return only
-- the first results, and leave the other claims as they are.
local group, consumer, ttl, delay, max_deliveries = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local returned = prefix .. 'returned:' .. group
local known = redis.call('HMGET', meta, 'streams', 'ttl', 'refreshed')
ttl = tonumber(known[2] or ttl)
redis.call('HDEL', meta, '')  -- a full server lets a script write whose first write needs no memory

local bytes, buried = 0, 0
local function give_back(stream, id, deliveries)
    local key, its_group = key_of(stream), group_of(stream, group)
    local entry = redis.call('XRANGE', key, id, id)[1]
    if entry then bytes = bytes + bytes_of(entry[2]) end
    if not entry then
        redis.call('XACK', key, its_group, id)  -- it was deleted while claimed
    elseif is_past_deadline(entry[2]) then
        cordon(stream, id, entry[2], deliveries)
    elseif deliveries >= max_deliveries then
        bury(stream, id, entry[2], deliveries)
        buried = buried + 1
        settle(stream, group, {id})
    else
        redis.call('ZADD', returned, integer(now + delay), stream .. '/' .. id)
        redis.call('XCLAIM', key, its_group, RETURNED, 0, id, 'JUSTID')
    end
end

local results = {}
for i = 6, #ARGV, 2 do
    local stream, id = ARGV[i], ARGV[i + 1]
    local found = redis.pcall('XPENDING', key_of(stream), group_of(stream, group), id, id, 1, consumer)
    local is_ours = not found.err and #found > 0
    if is_ours then give_back(stream, id, found[1][4]) end
    results[#results + 1] = is_ours and 1 or 0
    if bytes >= MOST_BYTES or buried >= MOST_BURIED then break end
end
touch(returned, ttl + delay)  -- without it, other consumers reclaim the messages
notify(ttl)
keep_alive(ttl, tonumber(known[1] or 0), tonumber(known[3] or 0))
return results
