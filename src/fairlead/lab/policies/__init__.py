"""Replay of recorded arrivals through the core on a virtual clock, under many policies, to choose
one before it is applied.

Only `on_spark` needs Spark; everything else runs in one process as well. See pipeline.md, section
4.
"""
