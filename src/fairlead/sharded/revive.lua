-- Remove dead letters, and write their messages into the queue again if streams are given. ARGV: number of streams of the queue,
-- ttl, number of letters; for each letter: its id, number of streams of its shard or 0 to remove the letter only, these streams.
-- Return for each letter 1, or 0 if there is no such letter.
local wanted, ttl = tonumber(ARGV[1]), tonumber(ARGV[2])
local known = redis.call('HMGET', meta, 'streams', 'ttl', 'refreshed')
local count, has_news = tonumber(known[1] or 0), false
ttl = tonumber(known[2] or ttl)

local results, at = {}, 4
for i = 1, tonumber(ARGV[3]) do
    local position, many = ARGV[at], tonumber(ARGV[at + 1])
    local streams = {unpack(ARGV, at + 2, at + 1 + many)}
    at = at + 2 + many
    local is_there
    if many == 0 then
        is_there = drop_letter(position)
    else
        local letter = redis.call('XRANGE', dead_letters, position, position)[1]
        is_there = letter ~= nil
        if letter then
            if not has_news then count = grow(count, wanted) end
            put(streams, {unpack(letter[2], 5)})  -- the first two fields describe the letter
            drop_letter(position)  -- last, so that a damaged stream loses no letter
            has_news = true
        end
    end
    results[i] = is_there and 1 or 0
end
if has_news then notify(ttl) end
keep_alive(ttl, count, tonumber(known[3] or 0))
return results
