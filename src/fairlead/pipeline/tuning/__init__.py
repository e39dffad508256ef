"""From the gold tables to what the control law reads; only `jobs/tune.py` publishes."""
