"""Runs under permits never exceed the limit, however nodes pause, die, lose responses and disagree
about the time."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.limits.permits import (
    DRIFT,
    ROTATION_SECONDS,
    STOP_AT,
    LedgerProposal,
    PermitLedger,
    Permits,
    decode,
    encode,
    fair_shares,
    held,
)
from tests.tiers import seeds

TTL = 15.0


# sharing ------------------------------------------------------------------------------------------

wants = st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.integers(0, 50), max_size=8)


@given(st.integers(0, 100), wants, st.integers(0, 1000))
def test_shares_sum_to_the_total_or_the_wants_and_no_node_gets_more_than_it_wants(
    total: int, wanted: dict[str, int], rotation: int
) -> None:
    shares = fair_shares(total, wanted, rotation)
    assert sum(shares.values()) == min(total, sum(wanted.values()))
    assert all(0 <= shares[node] <= want for node, want in wanted.items())


@given(st.integers(0, 100), wants, st.integers(0, 1000))
def test_a_node_that_gets_less_than_it_wants_gets_at_most_one_less_than_any_other(
    total: int, wanted: dict[str, int], rotation: int
) -> None:
    shares = fair_shares(total, wanted, rotation)
    for node, want in wanted.items():
        if shares[node] < want:
            assert all(shares[node] >= other - 1 for other in shares.values())


@given(st.integers(1, 20), st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_over_a_full_rotation_every_node_that_wants_permits_gets_one(
    total: int, wanted: list[int]
) -> None:
    names = {f"n{i}": want for i, want in enumerate(wanted)}
    rounds = [fair_shares(total, names, rotation) for rotation in range(len(names))]
    assert all(any(shares[name] for shares in rounds) for name in names)


# one node -----------------------------------------------------------------------------------------


def do_round(permits: Permits, ledger: PermitLedger, now: float) -> PermitLedger:
    proposal = permits.propose(ledger, now)
    permits.written(proposal)
    return decode(encode(proposal.ledger))


def used_up(permits: Permits, total: int, wanted: int) -> PermitLedger:
    """Return the ledger after `wanted` permits were in use and were released."""
    ledger = PermitLedger()
    while held(ledger, "total") < wanted:
        while permits.take("total", total, 0.0):
            pass
        ledger = do_round(permits, ledger, 0.0)
    while permits.running:
        permits.release("total")
    return ledger


def test_the_first_acquire_is_refused_and_the_next_round_brings_the_permits() -> None:
    permits = Permits("one", TTL)
    assert not permits.take("total", 30, 0.0)
    assert permits.needs_round
    ledger = do_round(permits, PermitLedger(), 0.0)
    assert held(ledger, "total") == 1
    assert permits.take("total", 30, 0.0)
    assert not permits.take("total", 30, 0.0)
    for n in (2, 4, 8, 16, 30):  # the number of permits grows as they are used up
        ledger = do_round(permits, ledger, 0.1)
        assert held(ledger, "total") == n
        while permits.take("total", 30, 0.1):
            pass
    assert permits.running == 30


def test_unused_permits_are_returned() -> None:
    permits = Permits("one", TTL)
    # The first round still counts the permits that were in use since the round before.
    ledger = do_round(permits, used_up(permits, 30, 16), 1.0)
    ledger = do_round(permits, ledger, 2.0)
    assert ledger.nodes == {}


def test_expired_permits_cannot_be_acquired_until_they_are_renewed() -> None:
    permits = Permits("one", TTL)
    permits.take("total", 3, 0.0)
    ledger = do_round(permits, PermitLedger(), 0.0)
    assert permits.take("total", 3, 0.0)
    permits.release("total")
    assert not permits.take("total", 3, TTL * STOP_AT)
    do_round(permits, ledger, TTL + 1)
    assert permits.take("total", 3, TTL + 1)


def test_a_node_that_is_silent_longer_than_its_time_loses_its_permits_and_no_sooner() -> None:
    one, two = Permits("one", TTL), Permits("two", TTL)
    one.take("total", 1, 0.0)
    ledger = do_round(one, PermitLedger(), 0.0)
    assert one.take("total", 1, 0.0)
    two.take("total", 1, 0.0)
    ledger = do_round(two, ledger, 1000.0)  # the clocks of the nodes differ
    for later in (1.0, TTL, TTL * (1 + DRIFT)):
        assert two.propose(ledger, 1000.0 + later).ledger.nodes["two"].shares["total"].held == 0
    ledger = do_round(two, ledger, 1000.0 + TTL * (1 + DRIFT) + 0.1)
    assert set(ledger.nodes) == {"two"} and two.take("total", 1, 1000.0 + TTL * (1 + DRIFT) + 0.1)
    one.propose(ledger, 5.0)
    assert one.until < 0, "the node knows that its permits were revoked"


def test_a_node_whose_heartbeat_continues_keeps_its_permits() -> None:
    one, two = Permits("one", TTL), Permits("two", TTL)
    one.take("total", 1, 0.0)
    ledger = do_round(one, PermitLedger(), 0.0)
    one.take("total", 1, 0.0)
    for n in range(100):
        ledger = do_round(one, ledger, n * 5.0)
        two.take("total", 1, n * 5.0)
        ledger = do_round(two, ledger, n * 5.0)
        assert ledger.nodes["one"].shares["total"].held == 1
    assert not two.take("total", 1, 500.0)


def test_after_a_write_with_unknown_outcome_only_safe_permits_remain() -> None:
    one = Permits("one", TTL)
    ledger = used_up(one, 8, 8)
    do_round(one, ledger, 0.0)
    one.propose(ledger, 1.0)  # returns all permits; the response is lost
    assert not one.take("total", 8, 1.0)


def test_every_node_eventually_gets_a_permit_that_cannot_be_shared() -> None:
    """Three nodes always want one of two permits. The rotation gives each node a permit when a run
    ends."""
    nodes = {name: Permits(name, TTL) for name in ("a", "b", "c")}
    ledger, got, running = PermitLedger(), dict.fromkeys(nodes, 0), []
    for step in range(200):
        now = step * ROTATION_SECONDS / 4
        while len(running) == 2:
            nodes[running.pop(0)].release("partner")
        for name, permits in nodes.items():
            if permits.take("partner", 2, now):
                running.append(name)
                got[name] += 1
            ledger = do_round(permits, ledger, now)
            assert held(ledger, "partner") <= 2
    assert min(got.values()) > 10


def test_unused_pools_leave_the_ledger() -> None:
    permits = Permits("one", TTL)
    ledger = PermitLedger()
    for n in range(1000):
        permits.take(f"key {n}", 3, 0.0)
        ledger = do_round(permits, ledger, 0.0)
        assert permits.take(f"key {n}", 3, 0.0)
        permits.release(f"key {n}")
    ledger = do_round(permits, do_round(permits, ledger, 1.0), 2.0)
    assert len(encode(ledger)) < 100 and len(permits._pools) == 0


# the cluster, under faults ------------------------------------------------------------------------


class World:
    """Nodes with their own clocks, a ledger behind slow and lossy connections, and a count of all
    runs."""

    def __init__(self, seed: int, nodes: int, totals: dict[str, int]) -> None:
        self.random = random.Random(seed)
        self.totals = totals
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.data, self.version = b"", 0
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
    """A node that acquires, runs and releases, with rounds by its own clock; it may pause, die or
    be cut off from the ledger at any moment, also between read and write."""

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
        self.is_dead = False
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

    def alive_in(self, pool: str) -> int:
        """Return the number of runs that continue; after its time, the watchdog has ended the node's runs."""
        return 0 if self.is_dead or self.clock() >= self.permits.until else self.running[pool]

    def work(self) -> None:
        world = self.world
        if self.clock() >= self.permits.until:
            for pool, running in self.running.items():
                for _ in range(running):
                    self.permits.release(pool)
                self.running[pool] = 0
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
        elif fate < 0.03:
            self.cut_off_until = world.now + world.random.uniform(0, 2 * TTL)
        world.at(world.random.expovariate(1.0), self.alive(self.work))

    def round(self) -> None:
        """Do one round at a time; ignore a response that comes after the round was abandoned."""
        self.under_way = mine = object()
        if self.world.now < self.cut_off_until:
            self.world.at(self.cut_off_until - self.world.now, self.alive(self.round))
            return
        data, version = self.world.data, self.world.version
        self.world.at(self.delay(), self.alive(lambda: self.propose(data, version, mine)))
        self.world.at(self.world.random.uniform(0.05, self.pace), self.alive(self.round))

    def propose(self, data: bytes, version: int, mine: object) -> None:
        if self.under_way is mine:
            proposal = self.permits.propose(decode(data), self.clock())
            # A write under way does not depend on the node: it may arrive long after the node has
            # died or has abandoned the write.
            self.world.at(self.delay(), lambda: self.land(proposal, version, mine))

    def land(self, proposal: LedgerProposal, version: int, mine: object) -> None:
        world = self.world
        if world.random.random() < 0.05 or version != world.version:
            return
        world.data, world.version = encode(proposal.ledger), version + 1
        if world.random.random() < 0.9:
            world.at(self.delay(), self.alive(lambda: self.confirm(proposal, mine)))

    def confirm(self, proposal: LedgerProposal, mine: object) -> None:
        if self.under_way is mine:
            self.permits.written(proposal)

    def delay(self) -> float:
        fate = self.world.random.random()
        return (
            self.world.random.uniform(0, 0.05) if fate < 0.9 else self.world.random.uniform(0, TTL)
        )


@pytest.mark.parametrize("seed", seeds(40, few=4))
def test_runs_never_exceed_the_limit_of_the_permits_under_random_faults(seed: int) -> None:
    world = World(seed, nodes=4, totals={"total": 10, "partner": 2})
    world.run(1500.0)
    assert world.started["total"] > 200 and world.started["partner"] > 50, (
        f"seed {seed}: {world.started}"
    )


def test_a_renewal_changes_only_the_heartbeat_and_keeps_the_permits() -> None:
    """A thread renews the permits of a node whose event loop is blocked."""
    one, other = Permits("one", ttl=15), Permits("other", ttl=15)
    ledger = PermitLedger()
    for now, permits in ((0.0, one), (1.0, other)):
        assert not permits.take("pool", 4, now)
        proposal = permits.propose(ledger, now)
        ledger = proposal.ledger
        permits.written(proposal)
        assert permits.take("pool", 4, now)
    renewed = one.renewal(ledger)
    assert renewed is not None
    assert renewed.nodes["other"] == ledger.nodes["other"]
    assert renewed.nodes["one"].shares == ledger.nodes["one"].shares
    assert renewed.nodes["one"].beat > ledger.nodes["one"].beat
    one.renewed(12.0)
    assert one.until == 27.0
    # The next round of the event loop continues with a later heartbeat.
    assert one.propose(renewed, 13.0).ledger.nodes["one"].beat > renewed.nodes["one"].beat


def test_lost_permits_are_not_renewed() -> None:
    one = Permits("one", ttl=15)
    assert one.renewal(PermitLedger()) is None
    one.renewed(5.0)
    assert one.until == float("-inf")
