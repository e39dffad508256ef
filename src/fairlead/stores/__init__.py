"""Adapters of the task store: SQLite (the default) and PostgreSQL. Statements live in the .sql files beside them."""
