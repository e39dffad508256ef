"""Adapters on ZooKeeper."""
