"""Adapters on one SQLite file."""
