"""The horizon of a partition's history: no run comes at or below an instant that readers have passed."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from fairlead.backends.cassandra.horizon import Horizon, key_of
from fairlead.model import RunEnd, ScheduledTask
from fairlead.ports.schedule_store import HOUR
from tests import tiers
from tests.contract.test_schedule_store import NOW, ended, task


def run(at: int = NOW, **changes: Any) -> RunEnd:
    return ended(ScheduledTask.of(task(NOW)), finished_at=at, **changes)


def written(horizon: Horizon, *ends: RunEnd) -> list[int]:
    with horizon.write(ends) as given:
        return [given[key_of(end)] for end in ends]


def test_a_failed_write_holds_the_horizon_as_long_as_its_end_may_be_written_again() -> None:
    horizon, end = Horizon(0), run(NOW)
    with pytest.raises(ZeroDivisionError), horizon.write([end]):
        raise ZeroDivisionError
    written(horizon, run(NOW + 5))
    horizon = Horizon(0, horizon)  # the next tenure on the same node
    assert horizon.raise_through() == NOW - 1
    del end  # nobody can write it again
    assert horizon.raise_through() == NOW + 5


@pytest.mark.parametrize("hours", [0.1, 1, 100])
def test_an_end_that_is_written_again_late_has_its_first_instant(
    hours: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    horizon, end, started = Horizon(0), run(NOW), time.monotonic()
    with pytest.raises(ZeroDivisionError), horizon.write([end]):
        raise ZeroDivisionError
    written(horizon, run(NOW + 5))
    monkeypatch.setattr(time, "monotonic", lambda: started + hours * 3600)
    horizon.stored = horizon.raise_through() or 0
    assert written(horizon, end) == [NOW]
    assert horizon.stored < NOW


@pytest.mark.parametrize("seed", tiers.seeds(4))
def test_no_run_lands_at_or_below_a_stored_horizon_and_each_lands_at_one_instant(seed: int) -> None:
    """Writes overlap, fail (with the row in the store or not) and are repeated; clocks step; tenures
    change on one node, and to another node."""
    chance = random.Random(f"{tiers.seed()} {seed}")
    stored, unsure, horizon, now = 0, 0, Horizon(0), NOW
    landed: dict[Any, int] = {}
    unwritten: list[RunEnd] = []
    writing: list[tuple[Any, RunEnd, int]] = []

    def land(end: RunEnd, instant: int) -> None:
        assert instant > max(stored, unsure)
        assert landed.setdefault(key_of(end), instant) == instant

    for _ in range(60):
        now += chance.choice([1, 1000, HOUR, -50])
        step = chance.randrange(6)
        if step == 0 or (step == 1 and not unwritten):
            unwritten.append(run(now))
        elif step == 1:
            end = unwritten.pop(chance.randrange(len(unwritten)))
            context = horizon.write([end])
            writing.append((context, end, context.__enter__()[key_of(end)]))
        elif step == 2 and writing:
            context, end, instant = writing.pop(chance.randrange(len(writing)))
            fails = chance.random() < 0.4
            if not fails or chance.random() < 0.5:
                land(end, instant)
            if fails:
                context.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
                unwritten.append(end)
            else:
                context.__exit__(None, None, None)
        elif step == 3 and (through := horizon.raise_through()) is not None:
            assert through > stored
            if chance.random() < 0.8:
                stored = horizon.stored = through
            else:  # the store may have it
                unsure = through
        elif step == 4:  # the next tenure on the same node
            for context, end, instant in writing:
                if chance.random() < 0.5:
                    land(end, instant)
                context.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
                unwritten.append(end)
            writing = []
            horizon = Horizon(stored, horizon)
        elif step == 5 and not writing and chance.random() < 0.2:  # another node
            stored = chance.choice([stored, max(stored, unsure)])
            unsure, horizon, unwritten = 0, Horizon(stored), []
