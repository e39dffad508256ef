-- List heads of dead letters, oldest first. ARGV: id after which the list begins or '', greatest number of heads.
return redis.call('XRANGE', dead_heads, ARGV[1] == '' and '-' or '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
