"""Incidents: past problems of queues, keys and nodes, found minute by minute in the tables."""
