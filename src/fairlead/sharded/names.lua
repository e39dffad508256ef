-- Return for each id of a message the ids of its dead letters. ARGV: these ids. If there are many letters, return only the first
-- results.
local found, left = {}, MOST
for i, id in ipairs(ARGV) do
    local positions = {}
    for _, each in ipairs(redis.call('ZRANGEBYLEX', dead_names, '[' .. id .. ' ', '(' .. id .. '!', 'LIMIT', 0, 100)) do
        local position = string.sub(each, #id + 2)
        if not string.find(position, ' ', 1, true) then positions[#positions + 1] = position end  -- else part of a longer id
        left = left - 1
    end
    found[i] = positions
    if left <= 0 then break end
end
return found
