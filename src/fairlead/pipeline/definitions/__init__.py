"""Definitions of the tables of silver and gold: names, keys and columns, without Spark."""
