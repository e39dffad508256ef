"""Fairness experiments without a database: the real core with a list as the store. The unit of time
is one poll, which takes the next task."""
