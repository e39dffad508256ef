"""Fair order in memory: flows, lanes, virtual time, and the table of triggers."""
