-- List dead letters or cordoned messages, oldest first. ARGV: dead or cordoned, greatest number of messages.
return redis.call('XRANGE', prefix .. ARGV[1], '-', '+', 'COUNT', ARGV[2])
