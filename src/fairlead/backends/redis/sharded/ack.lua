-- Acknowledge messages for a group. ARGV: group, then stream and entry of each. Returns how many of
-- them the group still held.
local held = 0
for i = 2, #ARGV, 2 do held = held + settle(ARGV[i], ARGV[1], ARGV[i + 1]) end
return held
