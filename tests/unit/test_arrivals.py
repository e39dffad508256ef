"""Triggers on their way to a level: those of a key stay in their order, whenever the store has shown
which of them have a level."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest

from fairlead.engine.arrivals import Arrivals
from fairlead.model import Trigger
from tests.builders import trigger
from tests.tiers import seeds


@pytest.mark.parametrize("seed", seeds(200, few=20))
def test_triggers_of_a_key_get_levels_in_their_order(seed: int) -> None:
    chance = Random(seed)
    arrivals, levelled = Arrivals(), list[Trigger]()
    waiting = {
        key: [trigger(f"{key}{seq}", key=key, seq=seq) for seq in range(n, 60, 3)]
        for n, key in enumerate("abc")
    }
    passed = chance.randint(0, 30)
    while any(waiting.values()) or arrivals:
        match chance.randint(0, 3):
            case 0 | 1:
                key = chance.choice("abc")
                count = chance.randint(1, 4)
                read, waiting[key] = waiting[key][:count], waiting[key][count:]
                arrivals.separate(read, passed)
            case 2 if arrivals.unchecked:
                asked = [*arrivals.unchecked[: chance.randint(1, 5)]]
                arrivals.checked(asked, set(), 0.0, 0.0)
            case 3 if not arrivals.unchecked:
                page = arrivals.take_page()
                levelled += page
                passed = max([passed, *(trigger.seq for trigger in page)])
    by_key = defaultdict(list)
    for each in levelled:
        by_key[each.fairness_key].append(each.seq)
    assert {key: len(seqs) for key, seqs in by_key.items()} == dict.fromkeys("abc", 20)
    assert all(seqs == sorted(seqs) for seqs in by_key.values())
