"""Queues, tasks and options as an application declares them."""
