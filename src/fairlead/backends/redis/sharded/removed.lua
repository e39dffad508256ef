-- List removed messages, oldest first. ARGV: dead or cordoned, how many at most.
return redis.call('XRANGE', prefix .. ARGV[1], '-', '+', 'COUNT', ARGV[2])
