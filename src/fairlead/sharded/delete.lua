-- Remove a message from the queue, even if it is claimed. ARGV: stream, entry. Return 1, or 0 if the
-- queue does not have the message.
local stream, id = ARGV[1], ARGV[2]
if stream == 'later' then
    return drop_later(id)
end
local found = redis.call('XRANGE', key_of(stream), id, id)
if #found == 0 then return 0 end
remove(stream, id, found[1][2])
return 1
