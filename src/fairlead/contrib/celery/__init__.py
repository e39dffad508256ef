"""The core of Celery's names on Fairlead: an ordinary Celery project runs by changing its imports.

Needs nothing of Celery. A name that is not here raises an error with its replacement. See
docs/how-to/from-celery.md.
"""

from fairlead.contrib.celery import exceptions, result, schedules, states
from fairlead.contrib.celery.app import Celery, current_app, shared_task
from fairlead.contrib.celery.messages import uuid
from fairlead.contrib.celery.missing import lookup
from fairlead.contrib.celery.signatures import Signature, chain, chord, group
from fairlead.contrib.celery.task import Task

__getattr__ = lookup(__name__)
__all__ = [
    "Celery",
    "Signature",
    "Task",
    "chain",
    "chord",
    "current_app",
    "exceptions",
    "group",
    "result",
    "schedules",
    "shared_task",
    "states",
    "uuid",
]
