"""The class of tasks and its request, under the path that they have in Celery."""

from fairlead.contrib.celery.request import Context
from fairlead.contrib.celery.task import Task

__all__ = ["Context", "Task"]
