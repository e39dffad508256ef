"""The triggers in memory: the sorted table, its columns, and what leaves it for the store."""
