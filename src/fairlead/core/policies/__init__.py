"""Retry and processing policies of a task."""
