"""Incidents: when something was wrong, whom it hit and when it was over, from the tables by
minute."""
