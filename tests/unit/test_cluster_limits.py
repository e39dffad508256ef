"""Cluster-wide limits of several nodes that share a ledger hold at every level and lose no permit."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from types import SimpleNamespace

import pytest

from fairlead.clock import SYSTEM_CLOCK
from fairlead.core.limits.cluster_limits import ClusterLimit, ClusterRateLimit, ClusterWide, OnNode
from fairlead.core.limits.limit_tree import LimitTree
from fairlead.core.limits.limits import Full, Limit, RateLimit
from fairlead.core.limits.permits import DRIFT
from fairlead.core.limits.sharded_permits import Permits, held_permits
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.engine.cluster_limits import ClusterLimits
from fairlead.engine.settings import NodeSettings
from fairlead.errors import ConfigurationError
from fairlead.model import Trigger
from tests.builders import trigger
from tests.tiers import seeds
from tests.unit.ledger_store import LedgerStore

TTL = 15.0


class Cluster:
    """Nodes that share a ledger and do their rounds on demand."""

    def __init__(self, limit: ClusterWide, nodes: int, ends_at_once: bool = True) -> None:
        self.ledger = LedgerStore()
        self.permits = [
            Permits(f"node {n}", TTL, limit.linger, ends_at_once=ends_at_once) for n in range(nodes)
        ]
        self.round_requested: set[int] = set()
        self.policies: list[OnNode] = [
            limit.on_node(permits, self._request_round(n)) for n, permits in enumerate(self.permits)
        ]

    def _request_round(self, n: int) -> Callable[[], None]:
        return lambda: self.round_requested.add(n)

    def round(self, n: int, now: float) -> list[object]:
        roomy = self.ledger.follow(self.permits[n].round("", lambda: now))
        return self.policies[n].limits_of(roomy or ())


def test_a_refused_acquire_asks_for_permits_and_its_column_is_released_when_they_arrive() -> None:
    cluster = Cluster(ClusterLimit(3, per="fairness_key"), 1)
    full = cluster.policies[0].acquire(trigger(1, key="acme"), 0.0)
    assert full is not None and full.retry_at is None and cluster.round_requested == {0}
    assert cluster.round(0, 0.0) == [full.limit]
    assert cluster.policies[0].acquire(trigger(1, key="acme"), 0.0) is None


@pytest.mark.parametrize("seed", seeds(2))
def test_a_limit_tree_is_exact_at_every_level_over_all_nodes(seed: int) -> None:
    chance = random.Random(seed)
    tree = LimitTree(
        ClusterLimit(8),
        names={"pay": ClusterLimit(4)},
        fairness_keys={"acme": ClusterLimit(2)},
        per_fairness_key=3,
    )
    cluster = Cluster(tree, 3)
    running: list[list[Trigger]] = [[], [], []]
    most: Counter[str] = Counter()
    for step in range(3000):
        n, now = chance.randrange(3), step * 0.05
        one = trigger(step, chance.choice(["pay", "mail"]), chance.choice(["acme", "x", "y"]))
        if cluster.policies[n].acquire(one, now) is None:
            running[n].append(one)
        if running[n] and chance.random() < 0.4:
            cluster.policies[n].release(running[n].pop(chance.randrange(len(running[n]))), now)
        if chance.random() < 0.3:
            cluster.round(n, now)
        everywhere = [each for those in running for each in those]
        counts = {
            "all": len(everywhere),
            "pay": sum(each.name == "pay" for each in everywhere),
            "acme": sum(each.fairness_key == "acme" for each in everywhere),
            "x on a node": max(
                sum(each.fairness_key == "x" for each in those) for those in running
            ),
        }
        for level, count in counts.items():
            most[level] = max(most[level], count)
    assert most == {"all": 8, "pay": 4, "acme": 2, "x on a node": 3}, f"seed {seed}"


def test_a_limit_tree_refused_at_one_level_keeps_no_slot_of_the_others() -> None:
    tree = LimitTree(ClusterLimit(10), names={"pay": 1})
    cluster = Cluster(tree, 1)
    assert isinstance(cluster.policies[0].acquire(trigger(1, "mail"), 0.0), Full)
    cluster.round(0, 0.0)
    assert cluster.policies[0].acquire(trigger(1), 0.0) is None
    for n in range(5):
        assert isinstance(cluster.policies[0].acquire(trigger(2 + n), 0.0), Full)
    assert cluster.permits[0].running == 1


class Node:
    """A node with one waiting task, which is tried again when the limit that stopped it is free."""

    def __init__(self, policies: Sequence[OnNode], name: str = "pay") -> None:
        own, of_queue = [*[None] * (2 - len(policies)), *policies]
        self.slots = SlotLedger(10)
        self.slots.register_task("q", name, own)
        self.slots.register_queue("q", of_queue)
        self.task = trigger(1, name)
        self.full: Full | None = Full("never tried")
        self.ends_at = math.inf
        self.runs = 0

    def step(self, freed: Collection[object], now: float, seconds: float) -> None:
        """Begin a run if the limit that stopped the task has room, and end a run after so many
        seconds. A new task waits at the end of each run."""
        if now >= self.ends_at:
            self.slots.release(self.task, now)
            self.ends_at, self.full = math.inf, Full("never tried")
        if self.full is not None and (self.full.limit in freed or self.full[0] == "never tried"):
            self.full = self.slots.acquire(self.task, now)
            if self.full is None:
                self.ends_at = now + seconds
                self.runs += 1


def runs_of(limits: Sequence[ClusterWide], names: Sequence[str], seconds: float) -> list[int]:
    """Let each node run tasks of one name, one after the other, for 100 seconds; return the number
    of runs of each. The time from one round of a node to the next is 0.2 s."""
    nodes = len(names)
    clusters = [Cluster(limit, nodes) for limit in limits]
    every = [
        Node([cluster.policies[n] for cluster in clusters], name) for n, name in enumerate(names)
    ]
    for step in range(500 * nodes):
        n, now = step % nodes, step * 0.2 / nodes
        freed = [limit for cluster in clusters for limit in cluster.round(n, now)]
        every[n].step(freed, now, seconds)
    return [node.runs for node in every]


@pytest.mark.parametrize(
    "limits",
    [
        lambda: [ClusterLimit(1)],
        lambda: [LimitTree(ClusterLimit(1), names={"pay": ClusterLimit(1)})],
        lambda: [
            LimitTree(
                ClusterLimit(1), names={"pay": ClusterLimit(1)}, per_fairness_key=ClusterLimit(1)
            )
        ],
        lambda: [ClusterLimit(1, per="name"), ClusterLimit(1)],
        lambda: [
            ClusterLimit(1, per="name"),
            LimitTree(ClusterLimit(1), names={"pay": ClusterLimit(1)}),
        ],
    ],
    ids=["one limit", "two levels", "three levels", "task and queue", "task and tree"],
)
def test_no_node_waits_for_ever_for_permits_of_several_limits(
    limits: Callable[[], list[ClusterWide]],
) -> None:
    for names, seconds in ((["pay", "pay"], 0.1), (["pay", "pay", "mail"], 2.0)):
        runs = runs_of(limits(), names, seconds)
        assert sum(runs) >= 100 / (seconds + 1.0), runs
        assert min(runs) >= sum(runs) / 15, runs


@pytest.mark.parametrize("seed", seeds(2))
def test_a_rate_holds_in_every_window_whichever_nodes_start_the_tasks(seed: int) -> None:
    chance = random.Random(seed)
    n, per = 5, 10.0
    cluster = Cluster(ClusterRateLimit(n, per), 3)
    starts: list[float] = []
    claimed: list[tuple[OnNode, Trigger]] = []  # for a random time, so that starts come late
    now = 0.0
    for step in range(4000):
        now += chance.expovariate(4.0)
        node = chance.randrange(3) if step // 500 % 2 else 0  # the nodes with work change over time
        for policy, late in claimed:
            if chance.random() < 0.2:
                policy.cancel(late, now)  # another node won the claim, so no task starts
            else:
                policy.started(late, now)
                starts.append(now)
        claimed.clear()
        one = trigger(step)
        if cluster.policies[node].acquire(one, now) is None:
            claimed.append((cluster.policies[node], one))
        for each in range(3):
            if chance.random() < 0.3:
                cluster.round(each, now)
    assert len(starts) > 0.6 * n * now / per, "most of the rate is used"
    assert all(late - early >= per for early, late in zip(starts, starts[n:], strict=False)), (
        f"seed {seed}"
    )


@pytest.mark.parametrize("is_killed", [False, True])
def test_starts_of_earlier_nodes_count_until_their_window_is_over(is_killed: bool) -> None:
    per, now = 100.0, 0.0
    cluster = Cluster(ClusterRateLimit(2, per), 5)
    started: list[float] = []
    for node, policy in enumerate(cluster.policies):
        for number in range(80):
            one = trigger(number)
            if policy.acquire(one, now) is None:
                policy.started(one, now)
                started.append(now)
            cluster.round(node, now)
            now += 0.5
        if is_killed and node == 0:
            cluster.ledger.ended.add("node 0")
        else:
            cluster.ledger.follow(cluster.permits[node].leave("", lambda: now))
    since = 40.0 if is_killed else 0.0  # when the next node found the dead one
    assert [(start - since) // (per * (1 + DRIFT)) for start in started[2:]] == [1, 1]
    assert cluster.ledger.follow(held_permits()) == {"": 2}


def test_a_trigger_learns_when_starts_of_an_earlier_node_no_longer_count() -> None:
    cluster = Cluster(ClusterRateLimit(1, 100.0), 2)
    left, new = cluster.policies
    left.acquire(trigger(1), 0.0)
    cluster.round(0, 0.0)
    assert left.acquire(trigger(1), 0.0) is None
    left.started(trigger(1), 0.0)
    cluster.ledger.follow(cluster.permits[0].leave("", lambda: 10.0))
    full = new.acquire(trigger(2), 10.0)
    assert full is not None and cluster.round(1, 10.0) == [full.limit]
    full = new.acquire(trigger(2), 10.0)
    assert full is not None and full.retry_at == 10.0 + 90.0 * (1 + DRIFT)


def test_permits_that_were_not_used_for_two_rounds_are_free_for_other_nodes() -> None:
    cluster = Cluster(ClusterLimit(1), 2)
    one, two = cluster.policies
    one.acquire(trigger(1), 0.0)
    cluster.round(0, 0.0)
    assert one.acquire(trigger(1), 0.0) is None
    cluster.round(0, 0.5)
    one.release(trigger(1), 0.6)
    cluster.round(0, 1.5)
    cluster.round(0, 2.5)
    assert two.acquire(trigger(2), 2.6)
    cluster.round(1, 2.6)
    assert two.acquire(trigger(2), 2.6) is None


def test_permits_of_a_node_whose_process_has_ended_are_free_at_once() -> None:
    cluster = Cluster(ClusterLimit(1), 3)
    dead, other, hanging = cluster.policies
    assert dead.acquire(trigger(1), 0.0)
    cluster.round(0, 0.0)
    assert dead.acquire(trigger(1), 0.0) is None
    assert other.acquire(trigger(2), 0.0)
    cluster.round(1, 0.2)
    assert other.acquire(trigger(2), 0.2)
    cluster.ledger.ended.add("node 0")
    assert cluster.round(1, 0.4) and other.acquire(trigger(2), 0.4) is None
    assert hanging.acquire(trigger(3), 0.4)
    cluster.round(2, 0.6)
    assert hanging.acquire(trigger(3), 0.6), "node 1 lives"


@pytest.mark.parametrize(
    ("limit", "ends_at_once", "is_seen", "seconds"),
    [
        pytest.param(ClusterLimit(1), False, True, TTL, id="its child processes may run on"),
        pytest.param(ClusterLimit(1), True, False, TTL, id="it may hang"),
        pytest.param(ClusterRateLimit(1, 100.0), True, False, 100.0 + TTL, id="it may start tasks"),
        pytest.param(ClusterRateLimit(1, 100.0), True, True, 100.0, id="its starts count"),
    ],
)
def test_permits_of_a_dead_node_are_free_when_its_runs_and_windows_are_over(
    limit: ClusterWide, ends_at_once: bool, is_seen: bool, seconds: float
) -> None:
    cluster = Cluster(limit, 2, ends_at_once)
    dead, other = cluster.policies
    dead.acquire(trigger(1), 0.0)
    cluster.round(0, 0.0)
    assert dead.acquire(trigger(1), 0.0) is None
    if is_seen:
        cluster.ledger.ended.add("node 0")
    other.acquire(trigger(2), 0.0)
    free_at = seconds * (1 + DRIFT) + 0.1
    for now in (0.0, 1.0, seconds, free_at - 0.2):
        cluster.round(1, now)
        assert isinstance(other.acquire(trigger(2), now), Full)
        cluster.ledger.ended.clear()  # a store forgets a dead node
    cluster.round(1, free_at)
    assert other.acquire(trigger(2), free_at) is None


def limits() -> ClusterLimits:
    context = SimpleNamespace(
        name="me",
        clock=SYSTEM_CLOCK,
        settings=NodeSettings(name="me"),
        ports=SimpleNamespace(presence=None),
    )
    return ClusterLimits(context)  # type: ignore[arg-type]


def test_one_limit_of_two_queues_needs_a_name() -> None:
    here, limit = limits(), ClusterLimit(3)
    assert here.on_node(limit, "payouts") is not limit
    with pytest.raises(
        ConfigurationError,
        match=r"ClusterLimit\(3\) belongs to payouts and to mail; give it a name=",
    ):
        here.on_node(limit, "mail")
    shared = ClusterLimit(3, name="bank")
    assert here.on_node(shared, "a") is here.on_node(shared, "b")


def test_two_limits_of_one_name_are_refused() -> None:
    here = limits()
    here.on_node(ClusterLimit(3, name="bank"), "payouts")
    with pytest.raises(ConfigurationError, match="two cluster-wide limits are named 'bank'"):
        here.on_node(ClusterLimit(3, name="bank"), "mail")


def test_each_node_has_its_own_part_of_a_limit_and_a_policy_of_the_user_stays_as_it_is() -> None:
    class Own:
        """A policy without `fresh`."""

        def column(self, trigger: Trigger) -> None: ...

        def acquire(self, trigger: Trigger, now: float) -> Full | None: ...

        def release(self, trigger: Trigger, now: float) -> tuple[()]:
            return ()

        cancel = release

    tree, own, one, two = LimitTree(3, names={"pay": 2}), Own(), limits(), limits()
    part = one.on_node(tree, "payouts")
    assert one.on_node(tree, "mails") is part and two.on_node(tree, "payouts") not in (part, tree)
    assert one.on_node(own, "payouts") is own and one.on_node(None, "payouts") is None


class Halved(Limit):
    """A limit of the user's own, derived from ours."""

    def acquire(self, trigger: Trigger, now: float) -> Full | None:
        return Full("mine") if trigger.fairness_key == "mine" else super().acquire(trigger, now)


class Slower(RateLimit):
    def column(self, trigger: Trigger) -> str:
        return "mine"


def test_the_part_of_a_node_keeps_the_class_and_the_values_of_a_limit_and_shares_no_slot() -> None:
    for declared in (Halved(2), Slower(2, per=60), LimitTree(2)):
        assert declared.acquire(trigger(9), 1.0) is None
        part = limits().on_node(declared, "payouts")
        assert type(part) is type(declared) and vars(part).keys() == vars(declared).keys()
        assert [part.acquire(trigger(n), 1.0) is None for n in range(3)] == [
            True,
            True,
            False,
        ]
