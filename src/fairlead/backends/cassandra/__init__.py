"""Adapters on Cassandra."""
