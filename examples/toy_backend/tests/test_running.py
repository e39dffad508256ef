"""An application whose tasks live in the toy."""

from __future__ import annotations

import asyncio

import pytest

from fairlead import App, ConfigurationError, Limit, Retry
from fairlead.errors import NotSupported
from fairlead.testing import drain


async def test_tasks_run_retry_and_keep_the_order_of_their_keys() -> None:
    app = App("toy://running")
    ran: list[int] = []
    tries: dict[int, int] = {}

    @app.task(concurrency=Limit(5))
    async def work(n: int) -> None:
        tries[n] = tries.get(n, 0) + 1
        await asyncio.sleep(0)
        if n % 10 == 0 and tries[n] == 1:
            raise Retry(after=0.01)
        ran.append(n)

    ordered = work.options(ordering_key="o", fairness_key="a")
    handles = ordered.submit_many([{"n": n} for n in range(1, 20)])
    work.options(fairness_key="b").submit_many([{"n": n} for n in range(20, 1500)])
    await drain(app)
    assert len({handle.id for handle in handles}) == 19
    assert sorted(ran) == list(range(1, 1500))
    assert [n for n in ran if n < 20] == list(range(1, 20))
    assert all(tries[n] == 1 + (n % 10 == 0) for n in tries)


async def test_a_worker_runs_tasks_of_another_application_on_the_same_name() -> None:
    """Applications on one name share everything."""
    submitting, working = App("toy://shared"), App("toy://shared")
    ran = []

    @working.task(name="note")
    async def note(n: int) -> None:
        ran.append(n)

    @submitting.task(name="note")
    async def same(n: int) -> None: ...

    await same.submit_async(n=1)
    await drain(working)
    assert ran == [1]


def test_a_url_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="toy://any-name"):
        _ = App("toy://").store


def test_tasks_that_need_more_are_refused_before_they_run() -> None:
    app = App("toy://more")

    @app.task(keep_result=True)
    def add() -> int:
        return 1

    with pytest.raises(NotSupported, match=r"lacks the port .*SqlStore, which results"):
        app.node()
