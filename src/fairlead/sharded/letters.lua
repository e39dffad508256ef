-- Return dead letters or their heads. ARGV: dead or dead:heads, then the id of each letter. Return for each its entry, or false.
local found = {}
for i = 2, #ARGV do found[i - 1] = redis.call('XRANGE', prefix .. ARGV[1], ARGV[i], ARGV[i])[1] or false end
return found
