"""A task whose values a server takes can run; tests/unit has the values that are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from fairlead import App
from fairlead.errors import FairleadError
from fairlead.testing import drain
from tests.unit.test_values import NASTY

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
