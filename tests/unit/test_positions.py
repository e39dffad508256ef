"""Pick-up positions of a replay, in cases that can be counted by hand."""

from __future__ import annotations

from fairlead.lab.history import HistoryRun
from fairlead.lab.replay.positions import positions


def runs(order: str, partition: int = 0) -> list[HistoryRun]:
    return [
        HistoryRun(
            f"{partition}-{position}", 1, partition, key, "done", "DONE", 0, position, position
        )
        for position, key in enumerate(order, 1)
    ]


def test_a_fair_order_is_within_the_bound_and_a_flood_first_is_not() -> None:
    fair, flood = positions(runs("abaaa")), positions(runs("aaaab"))
    assert fair is not None and flood is not None
    assert (fair.most_beyond_bound, fair.within_bound, fair.heaviest_last) == (0, 1.0, 5)
    assert (flood.most_beyond_bound, flood.within_bound, flood.heaviest_last) == (
        3,
        0.8,
        4,
    )  # b was due at position 2 and came 5th
    assert [(one.tenant, one.tasks, one.p99) for one in flood.tenants] == [("a", 4, 3), ("b", 1, 5)]
    assert flood.median_tenant_p99 == 4.0
    assert flood.jain_index < fair.jain_index


def test_positions_are_counted_in_each_partition_and_scaled_to_be_comparable() -> None:
    found = positions([*runs("ab"), *runs("ba", partition=1)])
    assert found is not None
    assert (found.most_beyond_bound, found.heaviest_last) == (0, 4)


def test_only_first_attempts_that_started_count() -> None:
    again = runs("a")[0]._replace(attempt=2)
    never = runs("a")[0]._replace(started_at=None)
    assert positions([again, never]) is None
