"""Input of the weights and limits that `jobs/tune.py` publishes: gold tables and a settings
file."""
