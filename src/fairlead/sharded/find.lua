-- Look for dead letters of all sections, in the order of their names. ARGV: 1 to look at those of one shard key, else 0; this key;
-- where to begin or ''; how many letters to look at; how many to find; then for each condition: text, 1 if the case of its letters
-- counts or else 0, number of fields, these fields. A head meets a condition if one of these fields has the text in it, or if the
-- head has none of the fields. Return where the next run begins, or '' at the end; then, for each letter whose head meets all
-- conditions, its place and its head.
local most, wanted = math.min(MOST, tonumber(ARGV[4])), tonumber(ARGV[5])
local conditions, at = {}, 6
while ARGV[at] do
    local fields, many = {}, tonumber(ARGV[at + 2])
    for i = 1, many do fields[i] = ARGV[at + 2 + i] end
    conditions[#conditions + 1] = {text = ARGV[at], is_exact = ARGV[at + 1] == '1', fields = fields}
    at = at + 3 + many
end

local function meets(flat, condition)
    local found = {}
    for _, field in ipairs(condition.fields) do found[#found + 1] = named(flat, field) or nil end
    if #found == 0 then return true end
    local text = table.concat(found, '\n')
    if not condition.is_exact then text = string.lower(text) end
    return string.find(text, condition.text, 1, true) ~= nil
end

local key, start, stop = dead_names, '-', '+'
local before = ''
if ARGV[1] == '1' then
    key, before = dead_keys, of_tenant(ARGV[2])
    start, stop = '[' .. before, '(' .. string.sub(before, 1, -2) .. ';'
end
if ARGV[3] ~= '' then start = '(' .. before .. ARGV[3] end
local members = redis.call('ZRANGEBYLEX', key, start, stop, 'LIMIT', 0, most)
local found, bytes = {''}, 0
for i, member in ipairs(members) do
    local its_section, position = string.match(member, '^.* ([^ /]*)/(%d+%-%d+)$')
    if position then
        local heads = '{' .. queue .. '}:' .. (its_section == '' and '' or its_section .. ':') .. 'dead:heads'
        local head = redis.call('XRANGE', heads, position, position)[1]
        local meets_all = head ~= nil
        for _, condition in ipairs(head and conditions or {}) do meets_all = meets_all and meets(head[2], condition) end
        if meets_all then
            found[#found + 1] = its_section .. '/' .. position
            found[#found + 1] = head
            bytes = bytes + bytes_of(head[2])
        end
    end
    local is_enough = #found > 2 * wanted or bytes >= MOST_BYTES
    if is_enough or i == most then found[1] = string.sub(member, #before + 1) end
    if is_enough then break end
end
return found
