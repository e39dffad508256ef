"""Adapters in the memory of one process."""
