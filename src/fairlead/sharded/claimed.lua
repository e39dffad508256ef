-- Return messages that a consumer has claimed. ARGV: group, consumer, then stream and entry of each message. Return the time (ms),
-- how many of these messages the script has looked at, and {stream, id, deliveries, fields} of those that the consumer has.
local group, consumer = ARGV[1], ARGV[2]
local found, bytes, looked_at = {}, 0, 0
for i = 3, #ARGV, 2 do
    local stream, id = ARGV[i], ARGV[i + 1]
    local key = key_of(stream)
    local held = redis.pcall('XPENDING', key, group_of(stream, group), id, id, 1, consumer)
    local entry = not held.err and #held > 0 and redis.call('XRANGE', key, id, id)[1]
    if entry then
        found[#found + 1] = {stream, id, held[1][4], entry[2]}
        bytes = bytes + bytes_of(entry[2])
    end
    looked_at = looked_at + 1
    if bytes >= MOST_BYTES then break end
end
return {integer(now), looked_at, found}
