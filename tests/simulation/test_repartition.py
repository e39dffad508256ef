"""Moves to other numbers of partitions keep the promises of ordered queues under faults, and a part
that breaks a promise is detected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlead.ordered import intake, partition, repartition
from tests.simulation.ordered_simulation import Broken
from tests.simulation.repartition_simulation import simulate
from tests.tiers import NIGHTLY, seeds


@pytest.mark.parametrize("seed", seeds(240, few=2))
def test_moves_cut_off_anywhere_lose_double_and_reorder_no_task(seed: int) -> None:
    simulate(seed)


def no_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "require_layout", lambda *_: None)


def no_rows_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Any, number: int) -> None:
        return None

    monkeypatch.setattr(repartition.Repartition, "_move_tasks", nothing)


def entries_stay_in_their_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "moved_entry", lambda entry, partitions: entry)
    monkeypatch.setattr(repartition, "moved_entry", lambda entry, partitions: entry)


@pytest.mark.parametrize(
    "broken",
    [
        no_seal,
        no_rows_moved,
        pytest.param(entries_stay_in_their_partition, marks=NIGHTLY("a long run")),
    ],
)
def test_a_part_that_breaks_its_promise_is_detected(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises((Broken, AssertionError, KeyError, ExceptionGroup)):
        for seed in range(60):
            simulate(seed)
