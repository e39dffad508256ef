"""Loggers of tasks."""

from __future__ import annotations

import logging


def get_task_logger(name: str) -> logging.Logger:
    """Return the logger of this name. `fairlead.ContextFilter` adds the task's id and name to its
    records."""
    return logging.getLogger(name)
