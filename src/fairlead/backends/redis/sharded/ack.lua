-- Acknowledge messages for a group. ARGV: group, then stream and entry of each message. Return the
-- number of messages that the group had claimed until now.
local held = 0
for i = 2, #ARGV, 2 do held = held + settle(ARGV[i], ARGV[1], ARGV[i + 1]) end
return held
