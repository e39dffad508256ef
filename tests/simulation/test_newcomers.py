"""The first task of a new key does not wait for the tasks of other queues, however many of these
are deep; mutations of the rule make it wait."""

from __future__ import annotations

import pytest

from fairlead.core.fair.groups import Scope
from tests.simulation.queues_world import QueuesWorld
from tests.tiers import block, seeds

WORLDS = 20
"""Worlds in one test."""

STARTS = 300
"""Starts of tasks in one world."""

MOST_WAIT = 0
"""Starts for which a new key may wait beyond the read under way and its own."""


@pytest.mark.parametrize("number", seeds(1))
def test_a_new_key_waits_for_no_more_than_the_read_beside_deep_queues(number: int) -> None:
    for seed in block(number, WORLDS):
        wait = QueuesWorld(seed).run(STARTS)
        assert wait <= MOST_WAIT, f"seed {seed}: waited for {wait} starts"


def test_a_new_key_waits_if_newcomers_do_not_go_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scope, "started", lambda scope: None)
    assert any(QueuesWorld(seed).run(STARTS) > 20 for seed in range(WORLDS))
