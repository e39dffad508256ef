"""Input of the control law, from the gold tables and a settings file; only `jobs/tune.py`
publishes."""
