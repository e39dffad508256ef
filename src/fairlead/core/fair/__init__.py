"""Fair order: passes by stride, the backlog beyond memory, shares of run time."""
