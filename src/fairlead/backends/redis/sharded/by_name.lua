-- List dead letters of all sections in the order of their names. ARGV: name after which the list begins or '', greatest number.
-- Return for each its name and place, with a space between.
return redis.call('ZRANGEBYLEX', dead_names, ARGV[1] == '' and '-' or '[' .. ARGV[1] .. '!', '+', 'LIMIT', 0, ARGV[2])
