"""Replays a recorded workload through a real queue: real submits, real worker processes, and a
judge beside them."""
