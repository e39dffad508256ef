-- Write messages, each into the shortest of its shard's streams, and wake who waits.
-- ARGV: streams, ttl, how long nobody may have asked for more streams before there are fewer, how many messages; of each:
-- when (ms, or '' for now), ticket (a name of its own if it is for later), once or '', unique or '', for how long it is (ms),
-- its name, how many streams its shard has, these, how many fields and values, these.
-- Answers for each: stream and id; or '' and its ticket, for later; or false and the name of the one that is there already.
local wanted, ttl, shrink_after = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local known = redis.call('HMGET', meta, 'streams', 'asked', 'ttl', 'refreshed')
local count, asked = tonumber(known[1] or 0), tonumber(known[2] or 0)

if wanted < count and now - asked >= shrink_after then
    -- Every stream from the new count up has to be empty, what is claimed included: readers will not look there again.
    local left = 0
    for stream = wanted, count - 1 do left = left + length(key_of(stream)) end
    -- They are left to expire: made anew within the millisecond, a stream would give the same ids again.
    if left == 0 then count = wanted end
end
count = grow(count, wanted)
if ttl > tonumber(known[3] or 0) then
    redis.call('HSET', meta, 'ttl', integer(ttl))
    known[4] = 0  -- what is there already is to live as long
else
    ttl = tonumber(known[3])
end

local at = 5
local function following(many)
    local found = {}
    for i = at, at + many - 1 do found[#found + 1] = ARGV[i] end
    at = at + many
    return found
end

local function write(due, ticket, mark, unique, window, name, streams, fields)
    if unique ~= '' then
        local key = '{' .. queue .. '}:unique:' .. unique
        local first = redis.call('SET', key, name, 'NX', 'GET', 'PX', window)
        if first then return {false, first} end
    end
    if mark ~= '' then
        if redis.call('SADD', once, mark) == 0 then return {false, mark} end
        touch(once, ttl)
    end
    if due ~= '' and tonumber(due) > now then
        put_later(due, ticket, wanted, streams, fields, ttl)
        return {'', ticket}
    end
    return {put(streams, fields, ttl)}
end

local answers = {}
for _ = 1, tonumber(ARGV[4]) do
    local due, ticket, mark, unique, window, name = unpack(following(6))
    local streams = following(tonumber(following(1)[1]))
    local fields = following(tonumber(following(1)[1]))
    answers[#answers + 1] = write(due, ticket, mark, unique, window, name, streams, fields)
end
notify(ttl)
touch(meta, ttl)
if section ~= '' then
    if redis.call('SADD', sections, section) == 1 then
        for _, other in ipairs(redis.call('SMEMBERS', sections)) do ring('{' .. queue .. '}:' .. other .. ':bell') end
    end
    touch(sections, ttl)
end
keep_alive(ttl, count, tonumber(known[4] or 0))
return answers
