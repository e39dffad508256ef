"""Shares of partitions: every partition of a served queue gets an owner, whatever nodes serve."""

from __future__ import annotations

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.core.sharding.shares import HOLD_SECONDS, Members, PartitionShares
from fairlead.model import PartitionKey

PATIENCE = 10.0
ROUND = 2.5
"""Seconds between two rounds of a node."""


class Fleet:
    """Nodes that share leases, each with the rounds of `fairlead.engine.ownership`."""

    def __init__(self, partitions: dict[str, int]) -> None:
        self.partitions = partitions
        self.now = 0.0
        self.served: dict[str, frozenset[str]] = {}
        self.nodes: dict[str, PartitionShares] = {}
        self.hung: set[str] = set()
        """Nodes that send heartbeats and acquire nothing."""
        self.owners: dict[PartitionKey, str] = {}
        self.moves = 0

    def start(self, node: str, queues: frozenset[str]) -> None:
        self.nodes[node] = PartitionShares(node, PATIENCE)
        self.served[node] = queues

    def kill(self, node: str) -> None:
        del self.nodes[node], self.served[node]
        self.owners = {key: owner for key, owner in self.owners.items() if owner != node}

    def round(self, restarting: frozenset[str] = frozenset()) -> None:
        """Let each node do one round, one after another."""
        self.now += ROUND
        members = Members(
            {
                queue: frozenset(node for node, queues in self.served.items() if queue in queues)
                for queue in self.partitions
            },
            restarting,
        )
        for node, shares in self.nodes.items():
            if node in self.hung:
                continue
            shares.set_members(members)
            for queue, partitions in self.partitions.items():
                count = partitions if queue in self.served[node] else 0
                owners = self.owners_of(queue)
                held = {partition for partition, owner in owners.items() if owner == node}
                for key in shares.beyond(queue, count, held, owners, self.now):
                    assert self.owners.pop(key) == node
                    self.moves += 1
                owners = self.owners_of(queue)
                held = {partition for partition, owner in owners.items() if owner == node}
                for key in shares.wanted(queue, count, held, owners, self.now):
                    assert key not in self.owners
                    self.owners[key] = node
                    self.moves += 1

    def owners_of(self, queue: str) -> dict[int, str]:
        return {key.partition: own for key, own in self.owners.items() if key.queue == queue}

    def rounds(self, seconds: float) -> None:
        for _ in range(round(seconds / ROUND)):
            self.round()

    def expected(self) -> set[PartitionKey]:
        """Return the partitions of queues that some node serves."""
        served = {
            queue
            for node, queues in self.served.items()
            if node not in self.hung
            for queue in queues
        }
        return {PartitionKey(queue, n) for queue in served for n in range(self.partitions[queue])}


QUEUES = ["a", "b", "c"]
queue_sets = st.frozensets(st.sampled_from(QUEUES), min_size=1)


@given(
    st.fixed_dictionaries({queue: st.integers(1, 9) for queue in QUEUES}),
    st.lists(queue_sets, min_size=1, max_size=5),
    st.lists(st.tuples(st.sampled_from(["start", "kill", "hang"]), queue_sets), max_size=4),
)
@example({"a": 4, "b": 4, "c": 4}, [frozenset("a"), frozenset("ab")], [])
@example({"a": 4, "b": 4, "c": 4}, [frozenset("a"), frozenset("b"), frozenset("abc")], [])
@example({"a": 4, "b": 4, "c": 4}, [frozenset("ab"), frozenset("bc"), frozenset("ca")], [])
def test_every_partition_of_a_served_queue_has_an_owner(
    partitions: dict[str, int],
    fleets: list[frozenset[str]],
    changes: list[tuple[str, frozenset[str]]],
) -> None:
    fleet = Fleet(partitions)
    for number, queues in enumerate(fleets):
        fleet.start(f"node-{number}", queues)
    fleet.rounds(4 * ROUND)
    assert fleet.owners.keys() == fleet.expected()
    for number, (change, queues) in enumerate(changes):
        named = sorted(fleet.nodes)[number % len(fleet.nodes)]
        if change == "start":
            fleet.start(f"late-{number}", queues)
        elif change == "hang" and named not in fleet.hung and len(fleet.nodes) > 1:
            fleet.hung.add(named)
            fleet.owners = {key: own for key, own in fleet.owners.items() if own != named}
        elif change == "kill" and len(fleet.nodes) > 1:
            fleet.kill(named)
            fleet.hung.discard(named)
        fleet.rounds(PATIENCE + 4 * ROUND)
        assert fleet.expected() <= fleet.owners.keys()


@given(
    st.fixed_dictionaries({queue: st.integers(1, 9) for queue in QUEUES}),
    st.lists(queue_sets, min_size=1, max_size=5),
    queue_sets,
)
def test_nodes_of_a_queue_differ_by_one_partition_at_most_and_then_nothing_moves(
    partitions: dict[str, int], fleets: list[frozenset[str]], late: frozenset[str]
) -> None:
    fleet = Fleet(partitions)
    for number, queues in enumerate(fleets):
        fleet.start(f"node-{number}", queues)
    fleet.rounds(4 * ROUND)
    fleet.start("late", late)
    fleet.rounds(4 * ROUND)
    counts = Counter((key.queue, owner) for key, owner in fleet.owners.items())
    for queue, count in partitions.items():
        nodes = [node for node, queues in fleet.served.items() if queue in queues]
        for node in nodes:
            assert count // len(nodes) <= counts[queue, node] <= -(-count // len(nodes))
    fleet.moves = 0
    fleet.rounds(2 * PATIENCE)
    assert fleet.moves == 0


def test_many_queues_of_one_partition_are_spread_over_all_nodes() -> None:
    fleet = Fleet({f"queue-{n}": 1 for n in range(100)})
    for node in range(4):
        fleet.start(f"node-{node}", frozenset(fleet.partitions))
    fleet.rounds(4 * ROUND)
    counts = Counter(fleet.owners.values())
    assert len(fleet.owners) == 100
    assert min(counts.values()) > 10


def test_partitions_of_a_restarting_node_wait_for_it() -> None:
    fleet = Fleet({"a": 4})
    fleet.start("one", frozenset("a"))
    fleet.start("two", frozenset("a"))
    fleet.rounds(4 * ROUND)
    before = dict(fleet.owners)
    fleet.hung.add("two")
    fleet.owners = {key: owner for key, owner in before.items() if owner == "one"}
    for _ in range(10):
        fleet.round(restarting=frozenset({"two"}))
    fleet.hung.clear()
    fleet.round()
    assert fleet.owners == before


@given(st.integers(2, 9))
def test_partitions_offered_to_a_node_that_acquires_nothing_move_less_and_less_often(
    count: int,
) -> None:
    fleet = Fleet({"a": count})
    fleet.start("works", frozenset("a"))
    fleet.start("hangs", frozenset("a"))
    fleet.hung.add("hangs")
    fleet.rounds(PATIENCE + 4 * ROUND)
    assert set(fleet.owners.values()) == {"works"}
    fleet.moves = 0
    fleet.rounds(HOLD_SECONDS * 31)
    # Five holds, each twice as long as the previous one; each costs a release and an acquisition.
    assert fleet.moves <= 2 * 5 * count
