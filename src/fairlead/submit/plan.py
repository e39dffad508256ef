"""A submit as a plan: a generator that yields each write it needs and receives its result.

Synchronous and asynchronous code carry out the same plan, in a transaction of their own or of the
caller.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from fairlead.ports.statements import Database, Steps

T = TypeVar("T")


class PlannedWrite(NamedTuple):
    """Steps to run in one transaction: the caller's if there is a connection."""

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


Plan = Generator[PlannedWrite, Any, T]


def carry_out(plan: Plan[T]) -> T:
    """Carry out the plan and return its result. Raise the error of a write inside the plan."""
    try:
        write = next(plan)
        while True:
            try:
                outcome = write.now()
            except BaseException as error:
                write = plan.throw(error)
            else:
                write = plan.send(outcome)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def carry_out_async(plan: Plan[T]) -> T:
    """Carry out the plan from asynchronous code, like `carry_out`."""
    try:
        write = next(plan)
        while True:
            try:
                outcome = await write.in_loop()
            except BaseException as error:
                write = plan.throw(error)
            else:
                write = plan.send(outcome)
    except StopIteration as stop:
        result: T = stop.value
        return result
