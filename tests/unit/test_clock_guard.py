"""Ordered tasks run at their times although the clock of the machine steps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from fairlead.clock import MICROS, SYSTEM_CLOCK
from fairlead.engine.liveness import Expiry
from fairlead.errors import StoreUnavailable
from fairlead.model import Finish, Outcome, State
from tests.ids import id_named
from tests.unit.test_ordered_partition import Bench

HOUR = 3600


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.close()


class StoreClock:
    """The clock of the store: right, unless it is set or does not respond."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.ahead = 7 * MICROS
        self.is_away = False

    async def now(self) -> int:
        if self.is_away:
            raise StoreUnavailable("the store is unavailable")
        return self._bench.clock._now + self.ahead


async def begin(bench: Bench) -> StoreClock:
    """Let the partition run for a while, beside a store that has a clock."""
    store_clock = StoreClock(bench)
    bench.guard._store_now = store_clock.now
    await begin_without(bench)
    return store_clock


async def begin_without(bench: Bench) -> None:
    bench.begin()
    bench.tasks.append(asyncio.create_task(bench.guard.run()))
    await bench.wait(90)


@pytest.mark.parametrize("step", [-30, HOUR])
async def test_a_task_runs_at_its_time_when_the_clock_of_the_machine_steps(
    bench: Bench, step: int
) -> None:
    await begin(bench)
    bench.submit(after=20 * 60)
    await bench.wait(60)
    bench.clock.step = step * MICROS
    await bench.wait(19 * 60 - 0.01)
    assert bench.start() == []
    await bench.wait(0.02)
    assert bench.start() == ["t"]
    assert {incident.kind for incident in bench.incidents} == {"clock_step"}
    way = "ahead" if step > 0 else "back"
    assert f"the clock of node node stepped {way} by {abs(step)}.0 s" in bench.incidents[0].details


async def test_a_step_that_is_taken_back_is_waited_out_also_while_the_store_is_away(
    bench: Bench,
) -> None:
    store_clock = await begin(bench)
    bench.submit(after=20 * 60)
    await bench.wait(1)
    store_clock.is_away = True
    bench.clock.step = HOUR * MICROS
    await bench.wait(15 * 60)
    assert bench.start() == []
    bench.clock.step = 0
    store_clock.is_away = False
    await bench.wait(5 * 60)
    assert bench.start() == ["t"]
    assert bench.guard._stepped_at is None


async def test_a_step_that_the_store_confirms_is_followed_at_once(bench: Bench) -> None:
    """The machine was suspended: its monotonic clock stood still."""
    store_clock = await begin(bench)
    bench.submit(after=20 * 60)
    await bench.wait(1)
    bench.clock.step = HOUR * MICROS
    store_clock.ahead += HOUR * MICROS
    await bench.wait(10.1)
    assert bench.start() == ["t"]


@pytest.mark.parametrize("wrong", [-HOUR, 2])
async def test_a_correction_of_a_wrong_clock_is_followed_at_once(bench: Bench, wrong: int) -> None:
    bench.clock.step = wrong * MICROS
    bench.guard.now()
    store_clock = StoreClock(bench)
    store_clock.ahead = MICROS // 10
    bench.guard._store_now = store_clock.now
    bench.guard._follow(bench.clock.now(), bench.clock.monotonic())
    await begin_without(bench)
    bench.clock.step = 0
    await bench.wait(10)
    assert bench.guard.now() == bench.clock.now()


async def test_a_step_that_no_other_clock_can_judge_is_followed_after_a_minute(
    bench: Bench,
) -> None:
    await begin_without(bench)
    bench.submit(after=20 * 60)
    await bench.wait(1)
    bench.clock.step = HOUR * MICROS
    await bench.wait(55)
    assert bench.start() == []
    await bench.wait(15)
    assert bench.start() == ["t"]


async def test_a_retry_waits_for_its_delay_when_the_clock_stepped(bench: Bench) -> None:
    await begin(bench)
    bench.submit()
    await bench.wait(1)
    bench.clock.step = HOUR * MICROS
    assert bench.start() == ["t"]
    now = bench.clock.now()
    bench.partition.in_flight.ended(
        Finish(id_named("t"), 2, Outcome.RETRIED, State.WAITING, now, now, run_at=now + 30 * MICROS)
    )
    await bench.wait(29)
    assert bench.start() == []
    await bench.wait(2)
    assert bench.start() == ["t"]


def test_a_node_holds_nothing_after_a_suspension_for_which_the_monotonic_clock_stood_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expiry, since_boot = Expiry(SYSTEM_CLOCK), time.clock_gettime
    expiry.extend(expiry.now(), 60.0)
    assert expiry.is_ahead()
    monkeypatch.setattr(time, "clock_gettime", lambda clock: since_boot(clock) + 61.0)
    assert not expiry.is_ahead()
