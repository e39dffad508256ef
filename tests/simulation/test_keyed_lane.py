"""Shares in a long lane that is read by fairness key, with weights of up to 1,000 and memory for 1 to
200 triggers, also while tasks in memory start during a read."""

from __future__ import annotations

import pytest

from tests import tiers
from tests.simulation.keyed_world import KeyedWorld
from tests.tiers import block, seeds

WORLDS = tiers.worlds(12)
STARTS = 1500


def most_short(world: KeyedWorld) -> float:
    """Return how much the share of a tenant may be below its due."""
    # Tasks of other keys start during a read, and there is no room for tasks of later turns.
    return 0.4 if world.late and world.capacity < 50 else 0.06


def most_short_inside(world: KeyedWorld) -> float:
    """Return the same for the share of a key in its tenant."""
    return 0.6 if world.late and world.capacity < 50 else 0.25 if world.late else 0.15


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("number", seeds(1))
def test_each_key_gets_its_share_however_small_memory_is(number: int, is_late: bool) -> None:
    for seed in block(number, WORLDS):
        world = KeyedWorld(seed, is_late=is_late)
        short = world.shortest(world.run(STARTS))
        assert short <= most_short(world), f"seed {seed}: {short:.3f} below its due"
        assert world.core.held <= world.core.most, f"seed {seed}: more was read than memory holds"


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("number", seeds(1))
def test_each_tenant_and_each_of_its_keys_gets_its_share(number: int, is_late: bool) -> None:
    for seed in block(number, WORLDS):
        world = KeyedWorld(seed, has_tenants=True, is_late=is_late)
        ran = world.run(STARTS)
        short, inside = world.short_tenant(ran), world.shortest(ran)
        assert short <= most_short(world), f"seed {seed}: a tenant is {short:.3f} below its due"
        assert inside <= most_short_inside(world), f"seed {seed}: {inside:.3f} in its tenant"
        assert world.core.held <= world.core.most, f"seed {seed}: more was read than memory holds"


@pytest.mark.parametrize("has_tenants", [False, True])
def test_tenants_keep_the_bound_of_fair_queueing_if_memory_is_read_at_once(
    has_tenants: bool,
) -> None:
    """Weights are known, and the memory holds the next task of each key, or only one task."""
    for seed in range(tiers.seed(), tiers.seed() + 10):
        world = KeyedWorld(seed, has_tenants)
        if not world.is_by_task and world.capacity <= 2:
            assert world.gap(world.run(STARTS)) <= 1 + 1e-9, f"seed {seed}"
