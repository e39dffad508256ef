-- Answers when the oldest message was written (ms), or '' if there is none, and now.
local oldest = nil
for _, stream in ipairs(all_streams(tonumber(redis.call('HGET', meta, 'streams') or 0))) do
    local found = redis.call('XRANGE', key_of(stream), '-', '+', 'COUNT', 1)[1]
    local at = found and tonumber(string.match(found[1], '^(%d+)-'))
    if at and (not oldest or at < oldest) then oldest = at end
end
return {oldest and integer(oldest) or '', integer(now)}
