"""Values of people and programs on servers: each is taken, or refused with an error of Fairlead, and
a task that was taken can run; SQLite and declarations are in tests/unit/test_values.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fairlead import App
from fairlead.testing import drain
from tests.public_surface import Shop, call, surface
from tests.unit.test_values import NASTY, raw_errors, taken

OPTIONS = ("fairness_key", "weight", "priority", "run_at", "ordering_key", "unique_key", "context")
PAIR = 2
COPIED = 60
"""Number of tasks that PostgreSQL takes by COPY."""


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


@pytest.fixture
def shop(url: str) -> Iterator[App]:
    app = App(url)
    app.migrate()
    app.queue("free", partitions=1)
    yield app
    app.close()


STORED = ("Task.", "TaskHandle.", "App.handle", "App.submit", "Management.", "PeriodicManagement.")
"""Beginnings of the public functions that give their values to a store."""


def test_every_parameter_that_reaches_a_store_takes_or_refuses_each_odd_value(
    url: str,
) -> None:
    opened = Shop.open(url)
    try:
        places = [each for each in surface() if each[0].startswith(STORED)]
        found = {
            place: raw_errors(lambda value: call(opened, *place, value), str(place))  # noqa: B023
            for place in places
        }
        assert len(places) > 60
        assert {place: errors for place, errors in found.items() if errors} == {}
    finally:
        opened.close()


async def test_every_task_whose_values_were_taken_runs(shop: App) -> None:
    pay, expected, ran = _pay(shop), 0, _ran
    ran.clear()
    for option in OPTIONS:
        if option == "run_at":
            continue  # tasks of the year 9999 wait
        for value in NASTY:
            task = []
            if taken(
                lambda option=option, value=value: task.append(pay.options(**{option: value}))
            ):
                for count in (1, PAIR, COPIED):
                    draft = task[0].draft
                    # A unique key admits one task.
                    handles: list[Any] = []
                    if taken(
                        lambda: handles.extend(shop.submit_many([draft() for _ in range(count)]))
                    ):
                        expected += len({handle.id for handle in handles if handle.is_new})
    assert expected > 500
    await drain(shop, timeout=120.0)
    assert len(ran) == expected


_ran: list[int] = []


def _pay(app: App) -> Any:
    from fairlead.declare.task import Task

    return (
        Task(app, app.handlers["pay"], _note)
        if "pay" in app.handlers
        else app.task(name="pay", queue="free")(_note)
    )


async def _note() -> None:
    _ran.append(1)
