"""Executors: run handlers on the event loop, in threads or in child processes."""
