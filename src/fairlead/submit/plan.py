"""A submit as a plan: a generator that yields what it needs of a database and is sent the answer.

One plan is carried out from synchronous and from asynchronous code, in a transaction of our own or
in the caller's.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from fairlead.ports.statements import Database, Steps

T = TypeVar("T")


class Write(NamedTuple):
    """Run the steps in one transaction; in the caller's where there is a connection."""

    database: Database
    steps: Steps[Any]
    connection: Any = None

    def now(self) -> Any:
        """Run the steps from synchronous code."""
        if self.connection is None:
            return self.database.run(self.steps)
        return self.database.join(self.connection, self.steps)

    async def in_loop(self) -> Any:
        """Run the steps from asynchronous code."""
        if self.connection is None:
            return await self.database.run_async(self.steps)
        return await self.database.join_async(self.connection, self.steps)


Plan = Generator[Write, Any, T]


def carry_out(plan: Plan[T]) -> T:
    """Carry out the plan and return its result. What a write raises is raised inside the plan."""
    try:
        write = next(plan)
        while True:
            try:
                answer = write.now()
            except BaseException as error:
                write = plan.throw(error)
            else:
                write = plan.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def carry_out_async(plan: Plan[T]) -> T:
    """Carry out the plan from asynchronous code, as `carry_out` does."""
    try:
        write = next(plan)
        while True:
            try:
                answer = await write.in_loop()
            except BaseException as error:
                write = plan.throw(error)
            else:
                write = plan.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
