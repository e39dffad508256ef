-- List cordoned messages, oldest first, about a megabyte at most. ARGV: id after which the list begins or '', greatest number of
-- messages. The list has ended if there are none.
local after, wanted, found, bytes = ARGV[1], tonumber(ARGV[2]), {}, 0
while #found < wanted and bytes < MOST_BYTES do
    local some = redis.call('XRANGE', prefix .. 'cordoned', after == '' and '-' or '(' .. after, '+', 'COUNT', math.min(10, wanted - #found))
    for _, entry in ipairs(some) do
        found[#found + 1] = entry
        bytes, after = bytes + bytes_of(entry[2]), entry[1]
    end
    if #some == 0 then break end
end
return found
