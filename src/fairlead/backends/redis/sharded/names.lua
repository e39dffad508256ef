-- Return for each name of a dead letter the places of the letters with it, in all sections. ARGV: these names.
local found = {}
for i, name in ipairs(ARGV) do
    local places = {}
    for _, each in ipairs(redis.call('ZRANGEBYLEX', dead_names, '[' .. name .. ' ', '(' .. name .. '!', 'LIMIT', 0, 100)) do
        local place = string.sub(each, #name + 2)
        if not string.find(place, ' ', 1, true) then places[#places + 1] = place end  -- otherwise part of a longer name
    end
    found[i] = places
end
return found
