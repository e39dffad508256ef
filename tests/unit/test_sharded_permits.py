"""Runs under permits never exceed the limit and records stay small, however nodes pause, die, lose
responses, disagree about the time, and split shards."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.core.limits import sharded_permits
from fairlead.core.limits.permits import DRIFT, PermitLedger, decode, encode
from fairlead.core.limits.sharded_permits import (
    LedgerFull,
    LedgerSteps,
    Permits,
    WriteShard,
    held_permits,
)
from tests.tiers import seeds
from tests.unit.ledger_store import LedgerStore

TTL = 15.0
RECORD_BYTES = 64 * 1024


# the size of records ------------------------------------------------------------------------------


def settle(store: LedgerStore, nodes: list[Permits], now: float) -> None:
    """Do rounds until no node has to change a ledger."""
    for _ in range(10):
        for permits in nodes:
            for shard in permits.due(now):
                try:
                    store.follow(permits.round(shard, lambda: now))
                except LedgerFull:
                    continue


@pytest.mark.parametrize(("nodes", "keys", "key_bytes"), [(20, 500, 12), (2, 200, 1024)])
def test_each_record_of_a_limit_by_key_stays_small_and_every_key_gets_its_permits(
    nodes: int, keys: int, key_bytes: int
) -> None:
    store = LedgerStore()
    every = [Permits(f"worker-{n:05d}.example.org#{n:08x}", TTL) for n in range(nodes)]
    pools = [f"{k:0{key_bytes}d}" for k in range(keys)]
    for permits in every:
        for pool in pools:
            assert not permits.take(pool, nodes, 0.0)
    settle(store, every, 0.0)
    assert all(permits.take(pool, nodes, 0.0) for permits in every for pool in pools)
    assert store.follow(held_permits()) == dict.fromkeys(pools, nodes)
    assert len(store.shards) > 4 and store.greatest < RECORD_BYTES


def test_the_record_of_one_key_is_full_rather_than_large_and_its_nodes_keep_their_permits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharded_permits, "FULL_BYTES", 48 * 1024)
    store, now = LedgerStore(), 0.0
    every = [Permits(f"{n:0200d}", TTL) for n in range(300)]
    refused = 0
    for permits in every:
        permits.take("key", 5000, now)
        try:
            store.follow(permits.round("", lambda: now))
        except LedgerFull:
            refused += 1
    assert 0 < refused < 150 and store.greatest < RECORD_BYTES
    holding = [permits for permits in every if permits.take("key", 5000, now)]
    assert len(holding) + refused == len(every)
    now = TTL / 2
    for permits in holding:
        store.follow(permits.renew("", lambda: now))
    assert all(permits.until == TTL / 2 + TTL for permits in holding)
    assert store.greatest < RECORD_BYTES


def test_a_node_reads_and_writes_only_the_shards_of_its_keys() -> None:
    store = LedgerStore()
    busy, quiet = Permits("busy", TTL), Permits("quiet", TTL)
    for n in range(4000):
        busy.take(f"key {n}", 2, 0.0)
    settle(store, [busy], 0.0)
    before = dict(store.shards)
    quiet.take("key 7", 2, 0.0)
    settle(store, [quiet], 0.0)
    assert quiet.take("key 7", 2, 0.0)
    changed = [shard for shard in store.shards if store.shards[shard] != before.get(shard)]
    assert len(before) > 8 and len(changed) == 1
    assert quiet.due(2.0) == changed, "later rounds read that shard only"


# splits -------------------------------------------------------------------------------------------

KEYS = [f"key {n}" for n in range(20)]


def running_on(node: str, store: LedgerStore) -> Permits:
    """Return the permits of a node that runs one task of each key, if there are permits left, in
    one shard."""
    permits = Permits(node, TTL)
    for key in KEYS:
        permits.take(key, 2, 0.0)
    store.follow(permits.round("", lambda: 0.0))
    for key in KEYS:
        permits.take(key, 2, 0.0)
    return permits


def split(permits: Permits, store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a node split its first shard."""
    with monkeypatch.context() as patch:
        patch.setattr(sharded_permits, "SPLIT_BYTES", 100)
        for key in KEYS:
            permits.take(key, 2, 1.0)
        store.follow(permits.round("", lambda: 1.0))
    assert decode(store.read("")[0]) == PermitLedger(is_closed=True)


@pytest.mark.parametrize("writes", range(12))
def test_a_split_that_ends_between_any_two_writes_is_completed_by_another_node(
    writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LedgerStore()
    dying, other = running_on("dying", store), running_on("other", store)
    held = store.follow(held_permits())
    assert held == dict.fromkeys(KEYS, 2)
    with monkeypatch.context() as patch:
        patch.setattr(sharded_permits, "SPLIT_BYTES", 100)
        store.follow(dying.round("", lambda: 6.0), writes)
    assert store.follow(held_permits()) == held
    for _ in range(2):
        for shard in other.due(6.0):
            store.follow(other.round(shard, lambda: 6.0))
    assert store.follow(held_permits()) == held
    for key in KEYS:
        assert not other.take(key, 2, 6.0)


def test_permits_are_renewed_in_the_shards_that_another_node_has_split_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread renews the permits while the event loop, which would learn of the split, is
    blocked."""
    store = LedgerStore()
    one, blocked = running_on("one", store), running_on("blocked", store)
    split(one, store, monkeypatch)
    for now in (5.0, 10.0, 20.0, 30.0):
        assert blocked.shards_in_use == [""]
        assert store.follow(blocked.renew("", lambda: now))  # noqa: B023
        settle(store, [one], now)
        assert blocked.until == now + TTL
    assert store.follow(held_permits()) == dict.fromkeys(KEYS, 2)


def test_permits_lost_in_one_part_of_a_split_shard_are_not_renewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = LedgerStore()
    one, blocked = running_on("one", store), running_on("blocked", store)
    split(one, store, monkeypatch)
    part = next(shard for shard in store.shards if shard)
    ledger = decode(store.read(part)[0])
    nodes = {node: held for node, held in ledger.nodes.items() if node != "blocked"}
    assert store.write(part, encode(PermitLedger(nodes)), store.read(part)[1])
    assert not store.follow(blocked.renew("", lambda: 5.0))
    assert blocked.until == TTL


def test_a_node_leaves_the_shards_that_another_node_has_split_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = LedgerStore()
    one, leaving = running_on("one", store), running_on("leaving", store)
    split(one, store, monkeypatch)
    for key in KEYS:
        leaving.release(key)
    for shard in leaving.shards:
        store.follow(leaving.leave(shard, lambda: 0.0))
    assert store.follow(held_permits()) == dict.fromkeys(KEYS, 1)


# the cluster, under faults ------------------------------------------------------------------------


class World:
    """Nodes with their own clocks, ledgers behind slow and lossy connections, and a count of all
    runs."""

    def __init__(self, seed: int, nodes: int, totals: dict[str, int]) -> None:
        self.random = random.Random(seed)
        self.totals = totals
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.store = LedgerStore()
        self.started = dict.fromkeys(totals, 0)
        self.names = itertools.count()
        self.nodes: list[Node] = []
        for _ in range(nodes):
            self.nodes.append(Node(self))

    def at(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.order), do))

    def run(self, seconds: float) -> None:
        while self.events and self.events[0][0] < seconds:
            self.now, _, do = heapq.heappop(self.events)
            do()

    def count(self) -> None:
        for pool, total in self.totals.items():
            running = sum(node.alive_in(pool) for node in self.nodes)
            assert running <= total, f"{running} of {total} run in {pool} at {self.now:.3f}"


class Node:
    """A node that acquires, runs and releases, with rounds by its own clock; it may pause, die,
    leave or be cut off from the ledgers at any moment, also between any two steps of a round."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rate = world.random.uniform(1.0, 1 + DRIFT * 0.99)
        self.offset = world.random.uniform(-1e6, 1e6)
        self.pace = world.random.choice([0.3, TTL / 3])
        self.ends = world.random.choice([0.05, 1.0])
        """Probability that a run ends at a step; if it is low, runs last until their permits expire."""
        self.paused_until = self.cut_off_until = 0.0
        self.born()

    def born(self) -> None:
        self.permits = Permits(f"node {next(self.world.names)}", TTL)
        self.running: dict[str, int] = dict.fromkeys(self.world.totals, 0)
        self.is_dead = self.is_leaving = False
        self.under_way = object()
        self.world.at(self.world.random.uniform(0, 1), self.alive(self.work))
        self.world.at(self.world.random.uniform(0, 1), self.alive(self.round))

    def alive(self, do: Callable[[], None]) -> Callable[[], None]:
        """Return `do` for the present incarnation of the node: skipped after a death, late after a pause."""
        permits = self.permits

        def then() -> None:
            if self.permits is not permits or self.is_dead:
                return
            if self.world.now < self.paused_until:
                self.world.at(self.paused_until - self.world.now, then)
                return
            do()

        return then

    def clock(self) -> float:
        return self.offset + self.rate * self.world.now

    @property
    def is_expired(self) -> bool:
        """Whether the watchdog has ended the node's runs."""
        until = self.permits.until
        return until is not None and self.clock() >= until

    def alive_in(self, pool: str) -> int:
        """Return the number of runs that continue."""
        return 0 if self.is_dead or self.is_expired else self.running[pool]

    def work(self) -> None:
        world = self.world
        if self.is_expired:
            self.end_runs()
        for pool, total in world.totals.items():
            for _ in range(world.random.randrange(4)):
                if self.permits.take(pool, total, self.clock()):
                    self.running[pool] += 1
                    world.started[pool] += 1
                    world.count()
            for _ in range(world.random.randrange(4)):
                if self.running[pool] and world.random.random() < self.ends:
                    self.running[pool] -= 1
                    self.permits.release(pool)
        fate = world.random.random()
        if fate < 0.01:
            self.paused_until = world.now + world.random.uniform(0, 3 * TTL)
        elif fate < 0.015:
            self.is_dead = True
            world.at(world.random.uniform(0, TTL), self.born)
        elif fate < 0.02:
            self.leave()
            return
        elif fate < 0.035:
            self.cut_off_until = world.now + world.random.uniform(0, 2 * TTL)
        world.at(world.random.expovariate(1.0), self.alive(self.work))

    def end_runs(self) -> None:
        for pool, running in self.running.items():
            for _ in range(running):
                self.permits.release(pool)
            self.running[pool] = 0

    def leave(self) -> None:
        """End all rounds and runs, then leave all shards at once."""
        self.end_runs()
        self.is_leaving = True
        self.under_way = mine = object()
        for shard in self.permits.shards:
            self.follow(self.permits.leave(shard, self.clock), None, mine)
        self.world.at(self.world.random.uniform(TTL, 2 * TTL), self.born)

    def round(self) -> None:
        """Do rounds of the shards that are due, or only renew the permits in use; ignore responses
        that come after a round was abandoned."""
        if self.is_leaving:
            return
        self.under_way = mine = object()
        if self.world.now < self.cut_off_until:
            self.world.at(self.cut_off_until - self.world.now, self.alive(self.round))
            return
        if self.world.random.random() < 0.1:
            for shard in self.permits.shards_in_use:
                self.follow(self.permits.renew(shard, self.clock), None, mine)
        else:
            for shard in self.permits.due(self.clock()):
                self.follow(self.permits.round(shard, self.clock), None, mine)
        self.world.at(self.world.random.uniform(0.05, self.pace), self.alive(self.round))

    def follow(self, steps: LedgerSteps[Any], result: object, mine: object) -> None:
        """Send the next request of some steps."""
        if self.under_way is not mine:
            return
        try:
            step = steps.send(result)
        except StopIteration:
            return
        if isinstance(step, WriteShard):
            # A write under way does not depend on the node: it may arrive long after the node has
            # died or has abandoned the write.
            self.world.at(self.delay(), lambda: self.land(steps, step, mine))
        else:
            self.respond(steps, self.world.store.read(step.shard), mine)

    def land(self, steps: LedgerSteps[Any], write: WriteShard, mine: object) -> None:
        if self.world.random.random() < 0.95:
            is_written = self.world.store.write(*write)
            if self.world.random.random() < 0.9:
                self.respond(steps, is_written, mine)

    def respond(self, steps: LedgerSteps[Any], result: object, mine: object) -> None:
        self.world.at(self.delay(), self.alive(lambda: self.follow(steps, result, mine)))

    def delay(self) -> float:
        fate = self.world.random.random()
        return (
            self.world.random.uniform(0, 0.05) if fate < 0.9 else self.world.random.uniform(0, TTL)
        )


@pytest.mark.parametrize("seed", seeds(2))
def test_runs_never_exceed_the_limit_of_the_permits_under_random_faults(seed: int) -> None:
    world = World(seed, nodes=4, totals={"total": 10, "partner": 2})
    world.run(600.0)
    assert world.started["total"] > 80 and world.started["partner"] > 20, (
        f"seed {seed}: {world.started}"
    )


@pytest.mark.parametrize("seed", seeds(1))
def test_runs_never_exceed_the_limit_of_a_key_while_shards_are_split_under_random_faults(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(seed, nodes=4, totals={f"key {n}": 1 + n % 3 for n in range(8)})
    shards = []
    for split_bytes in (600, 150):
        monkeypatch.setattr(sharded_permits, "SPLIT_BYTES", split_bytes)
        world.run(world.now + 150.0)
        shards.append(len(world.store.shards))
    assert min(world.started.values()) > 8, f"seed {seed}: {world.started}"
    assert shards[-1] > shards[0], f"seed {seed}: {shards}"
