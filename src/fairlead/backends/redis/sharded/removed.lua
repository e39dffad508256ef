-- List dead letters or cordoned messages, oldest first. ARGV: dead or cordoned, id after which the list begins or '', greatest
-- number of messages.
return redis.call('XRANGE', prefix .. ARGV[1], ARGV[2] == '' and '-' or '(' .. ARGV[2], '+', 'COUNT', ARGV[3])
