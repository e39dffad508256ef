-- Write one message into the shortest of a shard's streams, and wake who waits.
-- ARGV: streams, ttl, how long nobody may have asked for more streams before there are fewer, deadline or '',
-- how many streams the shard has, these streams, the fields of the entry. Answers the stream and the entry's id.
local wanted, ttl, shrink_after, deadline = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local in_shard = tonumber(ARGV[5])
local known = redis.call('HMGET', meta, 'streams', 'asked', 'ttl', 'refreshed')
local count, asked = tonumber(known[1] or 0), tonumber(known[2] or 0)

if wanted < count and now - asked >= shrink_after then
    -- Every stream from the new count up has to be empty, what is claimed included: readers will not look there again.
    local left = 0
    for stream = wanted, count - 1 do left = left + length(key_of(stream)) end
    if left == 0 then
        for stream = wanted, count - 1 do redis.call('DEL', key_of(stream)) end
        count = wanted
    end
end
if wanted >= count then
    count = wanted
    redis.call('HSET', meta, 'streams', count, 'asked', integer(now))
end
if ttl > tonumber(known[3] or 0) then
    redis.call('HSET', meta, 'ttl', integer(ttl))
else
    ttl = tonumber(known[3])
end

-- What waits in a stream: of what is claimed nobody has to be afraid.
local function waiting(key)
    local entries = length(key)
    if entries == 0 then return 0 end
    local pending = nil
    for _, each in ipairs(groups_of(key)) do
        if not pending or each.pending < pending then pending = each.pending end
    end
    return entries - (pending or 0)
end

local chosen, least = nil, nil
for i = 6, 5 + in_shard do
    local found = waiting(key_of(ARGV[i]))
    if not least or found < least then chosen, least = ARGV[i], found end
    if found == 0 then break end
end

local id = redis.call('XADD', key_of(chosen), '*', unpack(ARGV, 6 + in_shard))
if deadline ~= '' then
    redis.call('ZADD', deadlines, deadline, chosen .. '/' .. id)
    touch(deadlines, ttl)
end
-- No cap: of two writes between a reader's look and its waiting, both must be there. What is old wakes nobody.
redis.call('XADD', notifications, 'MINID', '~', integer(now - 60000), '*', 's', chosen)
touch(key_of(chosen), ttl)
touch(notifications, ttl)
touch(meta, ttl)
keep_alive(ttl, count, tonumber(known[4] or 0))
return {chosen, id}
