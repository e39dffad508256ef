"""A project in Celery's style, served by real workers."""

from __future__ import annotations

import os

from fairlead.contrib.celery import Celery, chord, shared_task

app = Celery("numbers", url=os.environ["TASKS_URL"])


@shared_task
def square(number: int) -> int:
    return number * number


@shared_task
def hang(number: int) -> int:
    """Keep the first worker busy until it is killed; return at once in the second one."""
    while os.environ["WORKER"] == "first":
        pass
    return number * number


@shared_task
def total(numbers: list[int]) -> int:
    return sum(numbers)


def submit() -> tuple[str, str]:
    """Submit a chord whose header has one task that hangs; return the ids of a task that ends and of
    the body."""
    result = chord([*(square.s(n) for n in range(20)), hang.s(20)])(total.s())
    return result.parent[0].id, result.id
