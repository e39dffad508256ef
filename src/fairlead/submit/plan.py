"""A submit as a plan: a generator that yields each step it needs and receives its result.

Synchronous and asynchronous code carry out the same plan, in a transaction of their own or of the
caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, TypeVar

from fairlead.ports.statements import Database, Steps

T = TypeVar("T")


class PlannedStep(Protocol):
    """One step of a plan."""

    def now(self) -> Any:
        """Carry out the step from synchronous code."""

    async def in_loop(self) -> Any:
        """Carry out the step from asynchronous code, without blocking the event loop."""


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


class PlannedWait(NamedTuple):
    """A wait for the end of a future."""

    future: Future[Any]

    def now(self) -> Any:
        """Wait from synchronous code."""
        return self.future.result()

    async def in_loop(self) -> Any:
        """Wait from asynchronous code."""
        return await asyncio.wrap_future(self.future)


Plan = Generator[PlannedStep, Any, T]


def carry_out(plan: Plan[T]) -> T:
    """Carry out the plan and return its result. Raise the error of a step inside the plan."""
    try:
        step = next(plan)
        while True:
            try:
                outcome = step.now()
            except BaseException as error:
                step = plan.throw(error)
            else:
                step = plan.send(outcome)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def carry_out_async(plan: Plan[T]) -> T:
    """Carry out the plan from asynchronous code, like `carry_out`."""
    try:
        step = next(plan)
        while True:
            try:
                outcome = await step.in_loop()
            except BaseException as error:
                step = plan.throw(error)
            else:
                step = plan.send(outcome)
    except StopIteration as stop:
        result: T = stop.value
        return result
