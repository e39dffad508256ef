"""Celery's names on Fairlead: an ordinary Celery project runs by changing its imports.

Needs nothing of Celery. See docs/how-to/from-celery.md, and `fairlead celery-report`.
"""

from fairlead.contrib.celery import exceptions, result, schedules, signals, states
from fairlead.contrib.celery.app import Celery, current_app, current_task, shared_task
from fairlead.contrib.celery.canvas import (
    Signature,
    chain,
    chord,
    chunks,
    group,
    maybe_signature,
    signature,
    subtask,
    xmap,
    xstarmap,
)
from fairlead.contrib.celery.task import Task
from fairlead.contrib.celery.utils.ids import uuid

__all__ = [
    "Celery",
    "Signature",
    "Task",
    "chain",
    "chord",
    "chunks",
    "current_app",
    "current_task",
    "exceptions",
    "group",
    "maybe_signature",
    "result",
    "schedules",
    "shared_task",
    "signals",
    "signature",
    "states",
    "subtask",
    "uuid",
    "xmap",
    "xstarmap",
]
