-- Cordon unclaimed messages whose deadline has passed, and drop the deadlines of messages that no
-- longer exist. ARGV: greatest age of the deadline (ms) or '' for any, greatest number of messages.
-- Return 1 if there may be more, else 0; then copies of the cordoned messages.
local since, wanted = '-inf', tonumber(ARGV[2])
if ARGV[1] ~= '' then since = '(' .. integer(now - tonumber(ARGV[1])) end
local cordoned, bytes = {}, 0

local function is_claimed(stream, key, id)
    for _, each in ipairs(groups_of(key)) do
        if at_most(id, each.last) and not is_held(stream, each.name, WAITING, id) then return true end
    end
    return false
end

local most = math.min(wanted, MOST_BURIED)
local due = redis.call('ZRANGEBYSCORE', deadlines, since, integer(now), 'LIMIT', 0, most)
local more = #due == most and 1 or 0
for _, member in ipairs(due) do
    if bytes >= MOST_BYTES then
        more = 1
        break
    end
    local stream, id = string.match(member, '^(.+)/(.+)$')
    local key = key_of(stream)
    local entry = redis.call('XRANGE', key, id, id)[1]
    if not entry or is_claimed(stream, key, id) then
        redis.call('ZREM', deadlines, member)
    else
        cordoned[#cordoned + 1] = cordon(stream, id, entry[2], 0)
        bytes = bytes + bytes_of(entry[2])
    end
end
return {more, unpack(cordoned)}
