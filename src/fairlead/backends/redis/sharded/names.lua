-- Return for each name of a dead letter the places of the letters with it, in all sections, or false. ARGV: these names.
return redis.call('HMGET', dead_names, unpack(ARGV))
