"""Bulk submit: very many tasks in one named job, which may be repeated and whose repeat changes
nothing.

A job is opened by its driver, staged by any number of processes at once, and published by the
driver. Only what is published is a task; what was staged by a process that died, or twice, never
is.
"""
