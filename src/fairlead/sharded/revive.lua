-- Remove dead letters, and write their messages into the queue again if streams are given. ARGV: number of streams of the queue,
-- ttl, number of letters; for each letter: its id, number of streams of its shard or 0 to remove the letter only, these streams,
-- number of fields and values that replace those of the letter, these fields and values, number of fields to leave out, their
-- names. Return for each letter 1, or 0 if there is no such letter.
local wanted, ttl = tonumber(ARGV[1]), tonumber(ARGV[2])
local known = redis.call('HMGET', meta, 'streams', 'ttl', 'refreshed')
local count, has_news = tonumber(known[1] or 0), false
ttl = tonumber(known[2] or ttl)

local at = 4
local function next_one()
    at = at + 1
    return ARGV[at - 1]
end
local function next_list()
    local found = {}
    for i = 1, tonumber(next_one()) do found[i] = next_one() end
    return found
end

-- Return the fields of the message that a letter holds.
local function message_of(letter, replaced, omitted)
    local fields, leave_out = {}, {}
    for _, name in ipairs(omitted) do leave_out[name] = true end
    for i = 5, #letter, 2 do  -- the first two fields describe the letter
        local name = letter[i]
        if not leave_out[name] then
            fields[#fields + 1] = name
            fields[#fields + 1] = named(replaced, name) or letter[i + 1]
        end
    end
    return fields
end

local results = {}
for i = 1, tonumber(ARGV[3]) do
    local position, streams, replaced, omitted = next_one(), next_list(), next_list(), next_list()
    local is_there
    if #streams == 0 then
        is_there = drop_letter(position)
    else
        local letter = redis.call('XRANGE', dead_letters, position, position)[1]
        is_there = letter ~= nil
        if letter then
            if not has_news then count = grow(count, wanted) end
            local fields = message_of(letter[2], replaced, omitted)
            put(streams, fields)
            local mark = named(fields, 'fairlead:once')
            if mark then redis.call('SADD', once, mark) end
            drop_letter(position)  -- last, so that a damaged stream loses no letter
            has_news = true
        end
    end
    results[i] = is_there and 1 or 0
end
if has_news then notify(ttl) end
keep_alive(ttl, count, tonumber(known[3] or 0))
return results
