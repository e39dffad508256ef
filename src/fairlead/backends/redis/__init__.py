"""Adapters on Redis."""
