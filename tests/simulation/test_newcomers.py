"""The first task of a new key does not wait for the tasks of other queues, however many of these
are deep; mutations of the rule make it wait."""

from __future__ import annotations

import pytest

from fairlead.core.fair.backlog import Backlog
from tests.simulation.queues_world import QueuesWorld
from tests.tiers import block, seeds

WORLDS = 20
"""Worlds in one test."""

STARTS = 300
"""Starts of tasks in one world."""

MOST_WAIT = 0
"""Starts for which a new key may wait beyond the read under way and its own."""


@pytest.mark.parametrize("number", seeds(50, 1))
def test_a_new_key_waits_for_no_more_than_the_read_beside_deep_queues(number: int) -> None:
    for seed in block(number, WORLDS):
        wait = QueuesWorld(seed).run(STARTS)
        assert wait <= MOST_WAIT, f"seed {seed}: waited for {wait} starts"


def test_a_new_key_waits_if_a_queue_that_reads_acknowledges_through_the_virtual_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    advance = Backlog._advance

    def acknowledge_all(backlog: Backlog) -> None:
        advance(backlog)
        if not backlog._loaded and not backlog._taken and backlog.is_at_end:
            backlog.ack_level = backlog.read_level

    monkeypatch.setattr(Backlog, "_advance", acknowledge_all)
    likely = 25  # the first of all seeds that shows it
    assert any(QueuesWorld(seed).run(STARTS) > 20 for seed in (likely, *range(5 * WORLDS)))
