"""The completion of ended runs, when the store responds with errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairlead.engine.completion import REPEAT_SECONDS, Completion
from fairlead.engine.context import NodeContext
from fairlead.engine.execution import Execution
from fairlead.errors import BatchTooLarge, StoreUnavailable
from fairlead.model import Finish
from fairlead.ports.observer import Silent


class CommitThenFail:
    """A store whose first response is lost after the commit, and which then refuses batches."""

    def __init__(self) -> None:
        self.written: set[str] = set()
        self.responses_lost = 0

    async def complete(self, node: str, finishes: Sequence[Finish]) -> tuple[list[str], None]:
        if not self.responses_lost:
            self.responses_lost = 1
            self.written.update(finish.id for finish in finishes)
            raise StoreUnavailable("the connection is gone")
        if len(finishes) > 1:
            raise ValueError("one of these cannot be written")
        return [finish.id for finish in finishes if finish.id in self.written], None


class Counting(Silent):
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def counted(self, what: str, count: int = 1) -> None:
        self.counts[what] += count


async def test_ends_whose_response_was_lost_count_as_written_even_if_repeated_one_by_one() -> None:
    async def sleep(seconds: float) -> None: ...

    observer, store = Counting(), CommitThenFail()
    context = SimpleNamespace(
        name="a",
        store=store,
        clock=SimpleNamespace(sleep=sleep, monotonic=lambda: 0.0),
        events=SimpleNamespace(on_settled=lambda executions: None),
        observer=observer,
    )
    completion = Completion(cast(NodeContext, context))
    for id in ("1", "2"):
        execution: Any = SimpleNamespace(trigger=SimpleNamespace(queue="mail"), claimed=None)
        completion.add(cast(Execution, execution), Finish(id, 2, "COMPLETED", "COMPLETED", 0, 1))
    await completion.flush()
    assert store.written == {"1", "2"} and completion.unwritten == 0
    assert not observer.counts


class Refusing:
    """A store that refuses batches of more than `most` ends, and the first `times` of the others,
    because of its limits."""

    def __init__(self, most: int, times: int = 0) -> None:
        self.sizes: list[int] = []
        self.written: list[str] = []
        self._most = most
        self._times = times

    async def complete(self, node: str, finishes: Sequence[Finish]) -> tuple[list[str], None]:
        self.sizes.append(len(finishes))
        if len(finishes) > self._most:
            raise BatchTooLarge("raise temp_file_limit")
        if self._times:
            self._times -= 1
            raise BatchTooLarge("raise temp_file_limit")
        self.written += [finish.id for finish in finishes]
        return [], None


class Time:
    """A clock that moves while one sleeps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def completion_with(store: Any, clock: Time, ends: int) -> Completion:
    context = SimpleNamespace(
        name="a",
        store=store,
        clock=clock,
        events=SimpleNamespace(on_settled=lambda executions: None),
        observer=Counting(),
    )
    completion = Completion(cast(NodeContext, context))
    for n in range(ends):
        execution: Any = SimpleNamespace(trigger=SimpleNamespace(queue="mail"), claimed=None)
        completion.add(cast(Execution, execution), Finish(f"{n}", 2, "done", "DONE", 0, 1))
    return completion


async def test_a_batch_that_the_limits_of_the_server_refuse_is_written_in_smaller_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Refusing(most=30)
    completion = completion_with(store, Time(), 200)
    await completion.flush()
    assert store.written == [f"{n}" for n in range(200)]
    assert store.sizes == [200, 100, 50, *[25] * 8]
    assert len(caplog.records) == 3
    assert completion.unwritten == 0


async def test_an_end_that_the_server_refuses_waits_and_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    store, clock = Refusing(most=1, times=60), Time()
    await completion_with(store, clock, 1).flush()
    assert store.written == ["0"]
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert 1 < len(errors) <= clock.seconds / REPEAT_SECONDS + 1
    assert all(vars(each)["error"] == "raise temp_file_limit" for each in errors)
    assert caplog.records[-1].message == "completions are written again"
    assert clock.seconds > 60 * 2  # the pauses grow
