"""Executors: run handlers on the event loop, in threads, in child processes."""
