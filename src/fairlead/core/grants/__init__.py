"""Grants of triggers between nodes: who has promised to take how many."""
