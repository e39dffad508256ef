"""Adapters of the ports, a folder for each technology."""
