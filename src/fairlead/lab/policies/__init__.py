"""Replay: recorded arrivals through the core on a virtual clock, under many policies, to choose one
before it is applied.

Only `on_spark` knows Spark; everything else runs in one process as well. pipeline.md, section 4.
"""
