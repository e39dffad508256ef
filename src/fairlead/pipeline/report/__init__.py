"""The report: what the tables of a lake say about a stretch of time, on one page that needs nothing
else."""
