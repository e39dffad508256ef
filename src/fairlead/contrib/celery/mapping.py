"""Tasks of every application: those that call another task with each item of a list."""

from __future__ import annotations

from typing import Any

from fairlead.contrib.celery.signature import signature
from fairlead.contrib.celery.task import Task

NAMES = ("celery.map", "celery.starmap")
"""Names of the tasks. Queue, priority and routes of such a task are those of the task that it
calls."""


class Map(Task):
    """Calls a task with each item."""

    name = "celery.map"
    is_starred = False

    def run(self, task: Any, it: list[Any]) -> list[Any]:
        """Return the results in order."""
        called = signature(task, app=self.app)
        return [called(*item) if self.is_starred else called(item) for item in it]


class StarMap(Map):
    """Calls a task with the arguments of each item."""

    name = "celery.starmap"
    is_starred = True
