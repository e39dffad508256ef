"""Adapters that SQLite and PostgreSQL share."""
