"""Declarations of an application: queues, tasks and their options."""
