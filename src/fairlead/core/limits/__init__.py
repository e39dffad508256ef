"""Limits of what runs at once: slots of a node, trees, rates, permits of the cluster."""
