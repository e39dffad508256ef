"""Incidents: one detector of problems of queues, keys and nodes, for live observations and minutes
of the past."""
