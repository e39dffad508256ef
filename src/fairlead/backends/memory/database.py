"""The database of a store that joins no transaction of others, and may have no statements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

from fairlead.errors import NotSupported
from fairlead.ports.statements import Row, Step, Steps

P = ParamSpec("P")
R = TypeVar("R")


def as_steps(method: Callable[P, R]) -> Callable[P, Steps[R]]:
    """Make a method that needs no statements return steps, for a database to run."""

    @wraps(method)
    def steps(*args: P.args, **kwargs: P.kwargs) -> Steps[R]:
        return method(*args, **kwargs)
        yield  # makes this function a generator

    return steps


class PlainDatabase:
    """A `fairlead.ports.statements.Database` without transactions of handlers and callers. A
    subclass may execute statements and open connections."""

    def __init__(self, location: str, lock: AbstractContextManager[Any] | None = None) -> None:
        """`location`: name for messages, without secrets. `lock`: held while steps run."""
        self.location = location
        self._lock = lock or nullcontext()

    def execute(self, step: Step) -> Sequence[Row]:
        """Execute one step; return its rows. Raises NotSupported if the store has no statements."""
        raise NotSupported(f"{self.location} executes no statements")

    def run(self, steps: Steps[Any]) -> Any:
        rows: Sequence[Row] | None = None
        with self._lock:
            while True:
                try:
                    step = next(steps) if rows is None else steps.send(rows)
                except StopIteration as end:
                    return end.value
                rows = self.execute(step)

    def read_now(self, steps: Steps[Any]) -> Any:
        return self.run(steps)

    async def run_async(self, steps: Steps[Any], durable: bool = True) -> Any:
        return await asyncio.to_thread(self.run, steps)

    async def read(self, steps: Steps[Any], *, together: bool = False) -> Any:
        return await asyncio.to_thread(self.run, steps)

    def transaction(self) -> AbstractContextManager[Any]:
        self._refuse()

    def transaction_async(self) -> AbstractAsyncContextManager[Any]:
        self._refuse()

    def join(self, connection: Any, steps: Steps[Any]) -> NoReturn:
        self._refuse()

    async def join_async(self, connection: Any, steps: Steps[Any]) -> NoReturn:
        self._refuse()

    complete, complete_async = join, join_async

    async def close_async(self) -> None:
        """Do nothing: there is no connection for the event loop alone."""

    async def close_loop(self) -> None:
        """Do nothing: there is no connection for the event loop alone."""

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _refuse(self) -> NoReturn:
        raise NotSupported(
            f"{self.location} joins no transaction: for that, name a SQL database in the url of the"
            " App, or in FAIRLEAD_URL"
        )
