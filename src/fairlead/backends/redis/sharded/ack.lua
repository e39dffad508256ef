-- Acknowledge messages for a group. ARGV: group, then stream and entry of each message. Return the
-- number of these messages that were claimed by the group and not acknowledged before.
local acknowledged = 0
for i = 2, #ARGV, 2 do acknowledged = acknowledged + settle(ARGV[i], ARGV[1], ARGV[i + 1]) end
return acknowledged
