"""Retry and processing policies of tasks."""
