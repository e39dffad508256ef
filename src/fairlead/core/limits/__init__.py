"""Limits on concurrent tasks and on starts: slots of a node, trees, rates, permits of the
cluster."""
