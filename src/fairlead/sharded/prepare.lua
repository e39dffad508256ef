-- Create the group in every stream of a section, so that a reader can wait for all of them at once.
-- ARGV: group, ttl.
local group, ttl = ARGV[1], tonumber(redis.call('HGET', meta, 'ttl') or ARGV[2])
local keys = {prefix .. 'notifier'}
for stream = 0, tonumber(redis.call('HGET', meta, 'streams') or 0) - 1 do keys[#keys + 1] = key_of(integer(stream)) end
for _, key in ipairs(keys) do
    local made = redis.pcall('XGROUP', 'CREATE', key, group, '0', 'MKSTREAM')
    if not made.err then
        if length(key) == 0 then touch(key, ttl) end
    elseif not string.find(made.err, 'BUSYGROUP', 1, true) then
        fail(key, made)
    end
end
return 1
