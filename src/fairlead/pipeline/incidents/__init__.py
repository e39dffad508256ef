"""Incidents: one detector of problems of queues, keys and nodes, for heartbeats of any length."""
