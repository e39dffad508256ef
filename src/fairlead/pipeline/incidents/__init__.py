"""Incidents: past problems, the keys they hit and their ends, found in the tables by minute."""
