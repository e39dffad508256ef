-- Return for each name of a dead letter the places of the letters with it, in all sections. ARGV: these names. If there are many
-- letters, return only the first results.
local found, left = {}, MOST
for i, name in ipairs(ARGV) do
    local places = {}
    for _, each in ipairs(redis.call('ZRANGEBYLEX', dead_names, '[' .. name .. ' ', '(' .. name .. '!', 'LIMIT', 0, 100)) do
        local place = string.sub(each, #name + 2)
        if not string.find(place, ' ', 1, true) then places[#places + 1] = place end  -- otherwise part of a longer name
        left = left - 1
    end
    found[i] = places
    if left <= 0 then break end
end
return found
