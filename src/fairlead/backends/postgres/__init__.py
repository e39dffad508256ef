"""Adapters on PostgreSQL."""
