-- How many messages are for later whose ticket begins so. ARGV: the beginning.
local found, from = 0, 0
repeat
    local tickets = redis.call('ZRANGE', later, from, from + 999)
    for _, ticket in ipairs(tickets) do
        if string.sub(ticket, 1, #ARGV[1]) == ARGV[1] then found = found + 1 end
    end
    from = from + #tickets
until #tickets < 1000
return found
