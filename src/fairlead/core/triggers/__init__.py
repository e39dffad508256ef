"""The triggers in memory: the sorted table, its columns, and evictions to the store."""
