"""The seal of a partition's history: no run comes at or below an instant that readers have passed."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from fairlead.backends.cassandra import seal as seal_module
from fairlead.backends.cassandra.seal import Seal, key_of
from fairlead.model import RunEnd, ScheduledTask
from fairlead.ports.schedule_store import HOUR
from tests import tiers
from tests.contract.test_schedule_store import NOW, ended, task


def run(at: int = NOW, **changes: Any) -> RunEnd:
    return ended(ScheduledTask.of(task(NOW)), finished_at=at, **changes)


def written(seal: Seal, *ends: RunEnd) -> list[int]:
    with seal.write(ends) as given:
        return [given[key_of(end)] for end in ends]


def test_the_seal_rises_to_the_newest_run_and_never_above_it() -> None:
    seal = Seal(0)
    assert seal.raise_through() is None
    assert written(seal, run(NOW), run(NOW + 5)) == [NOW, NOW + 5]
    assert seal.raise_through() == NOW + 5
    seal.stored = NOW + 5
    assert seal.raise_through() is None


def test_a_seal_that_was_not_stored_is_stored_again() -> None:
    seal = Seal(0)
    written(seal, run(NOW))
    assert seal.raise_through() == NOW
    assert seal.raise_through() == NOW


def test_a_run_that_ended_before_the_seal_comes_after_it() -> None:
    seal = Seal(NOW)
    assert written(seal, run(NOW - HOUR)) == [NOW + 1]
    assert written(seal, run(NOW - HOUR)) == [NOW + 2]
    assert written(seal, run(NOW + 9)) == [NOW + 9]


def test_two_late_ends_of_one_task_have_two_instants() -> None:
    seal = Seal(NOW)
    late = run(NOW - 5)
    dropped = msgspec.structs.replace(late, finished_at=NOW - 4)
    with seal.write([late]) as first, seal.write([dropped]) as second:
        assert first[key_of(late)] != second[key_of(dropped)]


def test_the_seal_stays_below_runs_that_are_being_written() -> None:
    seal = Seal(0)
    with seal.write([run(NOW)]):
        written(seal, run(NOW + 5))
        assert seal.raise_through() == NOW - 1
    assert seal.raise_through() == NOW + 5


def test_the_seal_stays_below_a_failed_write_until_its_repetition_at_the_same_instant() -> None:
    seal = Seal(NOW)
    late = run(NOW - 5)
    with pytest.raises(ZeroDivisionError), seal.write([late]) as given:
        raise ZeroDivisionError
    written(seal, run(NOW + 50))
    assert seal.raise_through() is None
    again = Seal(NOW, seal)  # the next tenure on the same node
    assert again.raise_through() is None
    assert written(again, late) == list(given.values())
    assert again.raise_through() == NOW + 50


def test_a_failed_write_holds_the_seal_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal_module, "CUT_OFF_SECONDS", 0.0)
    seal = Seal(0)
    with pytest.raises(ZeroDivisionError), seal.write([run(NOW)]):
        raise ZeroDivisionError
    written(seal, run(NOW + 5))
    assert seal.raise_through() == NOW + 5


def test_hours_are_noted_once() -> None:
    seal = Seal(0)
    end = run(NOW + HOUR)
    with seal.write([end]) as given:
        hours = seal.to_note([end], given)
        assert hours == [(NOW // HOUR + 1, NOW // HOUR)]
        seal.noted.update(hours)
        assert seal.to_note([end], given) == []


@pytest.mark.parametrize("seed", range(tiers.examples(500)))
def test_no_run_lands_at_or_below_a_stored_seal_and_each_lands_at_one_instant(seed: int) -> None:
    """Writes overlap, fail (with the row in the store or not) and are repeated; clocks step; tenures
    change on one node, and to another node."""
    chance = random.Random(f"{tiers.seed()} {seed}")
    stored, unsure, seal, now = 0, 0, Seal(0), NOW
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
            context = seal.write([end])
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
        elif step == 3 and (through := seal.raise_through()) is not None:
            assert through > stored
            if chance.random() < 0.8:
                stored = seal.stored = through
            else:  # the store may have it
                unsure = through
        elif step == 4:  # the next tenure on the same node
            for context, end, instant in writing:
                if chance.random() < 0.5:
                    land(end, instant)
                context.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
                unwritten.append(end)
            writing = []
            seal = Seal(stored, seal)
        elif step == 5 and not writing and chance.random() < 0.2:  # another node
            stored = chance.choice([stored, max(stored, unsure)])
            unsure, seal, unwritten = 0, Seal(stored), []
