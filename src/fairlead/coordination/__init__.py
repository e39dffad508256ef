"""Adapters of the coordinator: leases and elections."""
