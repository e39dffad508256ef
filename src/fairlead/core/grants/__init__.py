"""Grants of triggers between nodes: who wants how many of whom."""
