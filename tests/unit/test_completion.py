"""The completion of ended runs, when the store responds with errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from fairlead.engine.completion import Completion
from fairlead.engine.context import NodeContext
from fairlead.engine.execution import Execution
from fairlead.errors import StoreUnavailable
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
        clock=SimpleNamespace(sleep=sleep),
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
