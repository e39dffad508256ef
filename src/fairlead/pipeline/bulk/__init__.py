"""Bulk submit: very many tasks in one named job. A repeated job changes nothing.

The driver opens a job, any number of processes stage its rows, and the driver publishes it. Only
published rows are tasks. Rows that a crashed process staged, or that were staged twice, never
become tasks.
"""
