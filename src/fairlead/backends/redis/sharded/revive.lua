-- Remove a dead letter, and write it into the queue again if fields are given. Return 1, or 0 if there
-- is no such dead letter. ARGV: id of its entry, number of streams of the queue, ttl. To write it
-- again, ARGV goes on with: number of streams of its shard, these streams, number of fields and values,
-- these fields and values.
local wanted, ttl = tonumber(ARGV[2]), tonumber(ARGV[3])
local dead = prefix .. 'dead'
if not ARGV[4] then return redis.call('XDEL', dead, ARGV[1]) end
if #redis.call('XRANGE', dead, ARGV[1], ARGV[1]) == 0 then return 0 end
local known = redis.call('HMGET', meta, 'streams', 'ttl', 'refreshed')
ttl = tonumber(known[2] or ttl)
local streams, fields, last = {}, {}, 4 + tonumber(ARGV[4])
for i = 5, last do streams[#streams + 1] = ARGV[i] end
for i = last + 2, #ARGV do fields[#fields + 1] = ARGV[i] end
local count = grow(tonumber(known[1] or 0), wanted)
put(streams, fields)
redis.call('XDEL', dead, ARGV[1])  -- last, so that a damaged stream loses no letter
notify(ttl)
keep_alive(ttl, count, tonumber(known[3] or 0))
return 1
