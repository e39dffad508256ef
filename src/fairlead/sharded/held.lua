-- List messages that a consumer has claimed. ARGV: group, consumer, number of the first stream, the id of an entry in it after
-- which the list begins or ''. Return a number of the next stream, and an id in it, with which the next run goes on, or '' and '';
-- then stream and entry of each message. There may be further messages of which the caller learns only later.
local group, consumer, first, after = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local streams = all_streams(tonumber(redis.call('HGET', meta, 'streams') or 0))
local found = {'', ''}
for i = first + 1, #streams do
    local key, room = key_of(streams[i]), MOST - (#found - 2) / 2
    local start = i == first + 1 and after ~= '' and '(' .. after or '-'
    local pending = redis.pcall('XPENDING', key, group_of(streams[i], group), start, '+', room, consumer)
    if not pending.err then  -- otherwise no consumer of the group has read here
        for _, each in ipairs(pending) do
            found[#found + 1], found[#found + 2] = streams[i], each[1]
        end
        if #pending == room then
            found[1], found[2] = integer(i - 1), pending[#pending][1]
            break
        end
    end
end
return found
