"""Odd ways in which a handler can end: values it raises or returns, and uses of its asyncio task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from fairlead import Retry, Snooze

FAR = datetime(2100, 1, 1, tzinfo=UTC)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class UnprintableGroup(ExceptionGroup):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class ExitsWhenPrinted(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__


class PrintsNoText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class OwnBase(BaseException):
    pass


class HidesItsClass(Exception):
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class PretendsToSnooze(Exception):
    @property
    def __class__(self) -> Any:
        return Snooze


class HostileCause(Exception):
    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")


class HostileNotes(Exception):
    @property
    def __notes__(self) -> list[str]:
        raise RuntimeError("no notes")


class HostileReduce(Exception):
    def __reduce__(self) -> Any:
        raise SystemExit("not to be pickled")


class _Nameless(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__qualname__", "__module__", "__name__"):
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=_Nameless):
    pass


class ForgetfulRetry(Retry):
    def __init__(self) -> None:
        pass


class ForgetfulSnooze(Snooze):
    def __init__(self) -> None:
        pass


def _odd_name() -> BaseException:
    kind = type("Odd", (Exception,), {})
    kind.__qualname__ = "Odd\x00\ud800" * 1000
    kind.__module__ = None  # type: ignore[assignment]
    return kind("odd \x00 \ud800")


def _changed(error: BaseException, **fields: Any) -> BaseException:
    for name, value in fields.items():
        setattr(error, name, value)
    return error


def _cycle() -> BaseException:
    error = ValueError("a cycle")
    other = ValueError("the other half")
    error.__cause__, other.__cause__ = other, error
    return error


def _caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


RAISED: dict[str, Callable[[], BaseException]] = {
    "retry after text": lambda: Retry(after="120"),  # type: ignore[arg-type]
    "retry after inf": lambda: Retry(after=float("inf")),
    "retry after nan": lambda: Retry(after=float("nan")),
    "retry after negative": lambda: Retry(after=-1),
    "retry after huge float": lambda: Retry(after=1e300),
    "retry after huge int": lambda: Retry(after=10**400),
    "retry after bool": lambda: Retry(after=True),
    "retry after timedelta": lambda: Retry(after=timedelta(1)),  # type: ignore[arg-type]
    "retry with odd reset": lambda: Retry(reset_tries="yes"),  # type: ignore[arg-type]
    "retry changed later": lambda: _changed(Retry(after=1), after="120"),
    "retry changed to inf": lambda: _changed(Retry(after=1), after=float("inf")),
    "retry without fields": ForgetfulRetry,
    "retry from a hostile cause": lambda: _caused(Retry(), HostileCause()),
    "snooze until text": lambda: Snooze(until="tomorrow"),  # type: ignore[arg-type]
    "snooze until naive": lambda: Snooze(until=datetime(2100, 1, 1)),
    "snooze changed later": lambda: _changed(Snooze(FAR), until="tomorrow"),
    "snooze changed to naive": lambda: _changed(Snooze(FAR), until=datetime(2100, 1, 1)),
    "snooze without fields": ForgetfulSnooze,
    "no text": Unprintable,
    "group without text": lambda: UnprintableGroup("group", [Unprintable()]),
    "exits when printed": ExitsWhenPrinted,
    "prints a number": PrintsNoText,
    "own base exception": lambda: OwnBase("own"),
    "system exit": lambda: SystemExit(3),
    "keyboard interrupt": lambda: KeyboardInterrupt("not from a keyboard"),
    "generator exit": lambda: GeneratorExit("not closed"),
    "cancelled error": lambda: asyncio.CancelledError("by itself"),
    "stop iteration": lambda: StopIteration(1),
    "stop async iteration": lambda: StopAsyncIteration(1),
    "base group": lambda: BaseExceptionGroup("group", [SystemExit(1), ValueError("two")]),
    "cycle of causes": _cycle,
    "hides its class": HidesItsClass,
    "pretends to snooze": PretendsToSnooze,
    "hostile notes": HostileNotes,
    "hostile reduce": HostileReduce,
    "nameless": Nameless,
    "odd name": _odd_name,
}
"""Factories of errors that fail an attempt, by their oddity."""


def _deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


def _ring() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


RETURNED: dict[str, Callable[[], Any]] = {
    "an object": object,
    "a ring": _ring,
    "a deep list": _deep,
    "a lone surrogate": lambda: "\ud800",
    "a lock": asyncio.Lock,
}
"""Return values that are not JSON: a task that keeps its result fails."""


async def _cancels_itself() -> None:
    _own_task().cancel()
    await asyncio.sleep(0)


async def _cancels_itself_and_waits_for_another() -> None:
    _own_task().cancel()
    await asyncio.sleep(1000)


async def _awaits_a_cancelled_task() -> None:
    child = asyncio.ensure_future(asyncio.sleep(1000))
    child.cancel()
    await child


async def _cancels_itself_and_raises() -> None:
    _own_task().cancel()
    raise ValueError("after its own cancellation")


async def _is_cancelled_by_its_child() -> None:
    asyncio.get_running_loop().call_later(0.001, _own_task().cancel)
    await asyncio.sleep(1000)


async def _uncancels_itself() -> None:
    _own_task().cancel()
    _own_task().uncancel()
    await asyncio.sleep(1000)


async def _raises_after_a_wait() -> None:
    await asyncio.sleep(0.001)
    raise OwnBase("after a wait")


async def _exits() -> None:
    raise SystemExit(3)


async def _groups_a_child_that_exits() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_exits())
        group.create_task(asyncio.sleep(1000))


async def _waits_for_a_child_interrupted_by_hand() -> None:
    async def interrupted() -> None:
        await asyncio.sleep(0.001)
        raise KeyboardInterrupt

    await asyncio.wait_for(interrupted(), 10)


ASYNC_FAILING: dict[str, Callable[[], Awaitable[None]]] = {
    "cancels itself": _cancels_itself,
    "cancels itself and waits": _cancels_itself_and_waits_for_another,
    "awaits a cancelled task": _awaits_a_cancelled_task,
    "cancels itself and raises": _cancels_itself_and_raises,
    "is cancelled by its timer": _is_cancelled_by_its_child,
    "uncancels itself": _uncancels_itself,
    "raises after a wait": _raises_after_a_wait,
    "groups a child that exits": _groups_a_child_that_exits,
    "waits for a child interrupted by hand": _waits_for_a_child_interrupted_by_hand,
}
"""Handlers that misuse their own asyncio task, so that their attempt fails."""


async def _cancels_and_returns() -> None:
    _own_task().cancel()


async def _ignores_its_cancellation() -> None:
    _own_task().cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(1000)


async def _is_cancelled_after_its_end() -> None:
    for delay in (0.0, 0.001, 0.02):
        asyncio.get_running_loop().call_later(delay, _own_task().cancel)


async def _leaves_a_timeout_open() -> None:
    await asyncio.timeout(0.002).__aenter__()


_children: set[asyncio.Task[None]] = set()


async def _leaves_a_child_that_exits() -> None:
    async def exit_later() -> None:
        await asyncio.sleep(0.002)
        await _exits()

    child = asyncio.get_running_loop().create_task(exit_later())
    _children.add(child)
    child.add_done_callback(_children.discard)


async def _cancels_a_child_before_it_starts() -> None:
    child = asyncio.ensure_future(_exits())
    child.cancel()
    with suppress(asyncio.CancelledError):
        await child


ASYNC_RETURNING: dict[str, Callable[[], Awaitable[None]]] = {
    "cancels and returns": _cancels_and_returns,
    "ignores its cancellation": _ignores_its_cancellation,
    "is cancelled after its end": _is_cancelled_after_its_end,
    "leaves a timeout open": _leaves_a_timeout_open,
    "leaves a child that exits": _leaves_a_child_that_exits,
    "cancels a child before it starts": _cancels_a_child_before_it_starts,
}
"""Handlers that misuse their own asyncio task and then return, so that their run is done."""


def _own_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task
