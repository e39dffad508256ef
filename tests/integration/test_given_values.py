"""Values of people and programs on servers: each is taken, or refused with an error of Fairlead, and
a task that was taken can run; SQLite and declarations are in tests/unit/test_values.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from fairlead import App
from fairlead.errors import FairleadError
from fairlead.testing import drain
from tests.public_surface import Shop, call, surface
from tests.unit.test_values import NASTY, raw_errors

OPTIONS = ("fairness_key", "weight", "priority", "ordering_key", "unique_key", "context", "tags")
"""Options of a submit, without `run_at`: tasks of the year 9999 wait."""
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
            place: raw_errors(lambda value: call(opened, *place, value))  # noqa: B023
            for place in places
        }
        assert len(places) > 60
        assert {place: errors for place, errors in found.items() if errors} == {}
    finally:
        opened.close()


async def test_every_task_whose_values_were_taken_runs(shop: App) -> None:
    ran: list[int] = []
    expected = 0

    @shop.task(queue="free")
    async def pay() -> None:
        ran.append(1)

    def submit(options: dict[str, Any], count: int) -> int:
        """Return the number of new tasks; a unique key admits one."""
        drafts = [pay.options(**options).draft()] * count
        return len({each.id for each in shop.submit_many(drafts) if each.is_new})

    for option in OPTIONS:
        for value in NASTY:
            for count in (1, PAIR, COPIED):
                with suppress(FairleadError):
                    expected += submit({option: value}, count)
    assert expected > 500
    await drain(shop, timeout=120.0)
    assert len(ran) == expected
