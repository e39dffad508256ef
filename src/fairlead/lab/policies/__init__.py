"""Replay of recorded arrivals through the core on a virtual clock, under many policies, to choose
one before it is applied.

Everything here runs in one process; `fairlead.pipeline.replay` runs it on Spark.
docs/how-to/replay.md explains the results.
"""
