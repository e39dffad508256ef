"""Replay of a recorded workload through a real queue: real submits, real worker processes, and a
separate judge."""
