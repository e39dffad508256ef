"""The high-water mark gives a reader each attempt once and in order, however relays crash, repeat and
overtake each other."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.ids import id_text
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.stream.messages import (
    Attempt,
    HighWater,
    Mark,
    MessageBatch,
    Sent,
    read,
    topic_partition,
)
from fairlead.ports.history import ATTEMPT_FIELDS, START, Position
from tests.tiers import examples

PARTITIONS = 2
STORE = "store"
ROWS = 5  # in a batch


def row(n: int) -> tuple[object, ...]:
    """Return the n-th attempt of the store."""
    fields = dict.fromkeys(ATTEMPT_FIELDS, 1) | {"seq": n, "xid": n // 5, "task_id": id_text(n)}
    texts = (
        "queue",
        "name",
        "fairness_key",
        "ordering_key",
        "unique_key",
        "outcome",
        "next_state",
        "node",
        "trigger_path",
        "error_type",
        "error_text",
    )
    return tuple((fields | dict.fromkeys(texts, "x")).values())


@dataclass
class ModelRelay:
    """A relay and the unconfirmed messages of its producer."""

    world: World
    own: Position = START
    out: list[list[Sent]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    stage: str = "idle"
    failed: bool = False
    end: Position = START
    batch: MessageBatch | None = None

    def proceed(self) -> None:
        """Do the next step once all messages sent are confirmed."""
        if self.failed:  # make a new producer, and continue after the own position
            self.world.abandoned.append(self.out)
            self.out, self.stage, self.failed = [[] for _ in range(PARTITIONS)], "idle", False
        if any(self.out):
            return
        if self.stage == "idle":
            self.own = max(self.own, self.world.confirmed)
            rows = [r for r in self.world.rows if Position(*r[:2]) > self.own][:ROWS]
            if not rows:
                return
            self.batch, self.end, self.stage = (
                MessageBatch(STORE, self.own, PARTITIONS),
                Position(*rows[-1][:2]),
                "rows",
            )
            self.produce(self.batch.attempts(rows))
        elif self.stage == "rows":
            assert self.batch is not None
            self.produce(self.batch.marks(self.end))
            self.stage = "marks"
        else:
            self.own, self.stage = self.end, "idle"
            self.world.confirmed = max(self.world.confirmed, self.end)

    def produce(self, messages: object) -> None:
        for message in messages:  # type: ignore[attr-defined]
            self.out[message.partition].append(message)


@dataclass
class World:
    """A store, a topic and the relays between them."""

    rows: list[tuple[object, ...]] = field(default_factory=list)
    confirmed: Position = START
    logs: list[list[bytes]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    relays: list[ModelRelay] = field(default_factory=list)
    abandoned: list[list[list[Sent]]] = field(default_factory=list)
    """Messages of abandoned producers, which may still arrive at any time."""

    def step(self, what: str, who: int, where: int) -> None:
        relay = self.relays[who % len(self.relays)]
        if what == "commit":
            self.rows.append(row(len(self.rows) + 1))
        elif what == "proceed":
            relay.proceed()
        elif what == "crash":
            self.abandoned.append(relay.out)
            self.relays[self.relays.index(relay)] = ModelRelay(self)
        elif what == "lose" and relay.out[where]:
            relay.out[where].pop(0)
            relay.failed = True
        elif what == "deliver" and relay.out[where]:
            self.logs[where].append(relay.out[where].pop(0).value)
        elif (
            what == "drift"
            and self.abandoned
            and (late := self.abandoned[who % len(self.abandoned)])[where]
        ):
            self.logs[where].append(late[where].pop(0).value)

    def finish(self) -> None:
        """Deliver all abandoned messages and let one relay reach the end."""
        for late in self.abandoned:
            for n in range(PARTITIONS):
                self.logs[n] += [sent.value for sent in late[n]]
        self.abandoned.clear()
        relay = ModelRelay(self)
        while self.confirmed < Position(*(self.rows[-1][:2] if self.rows else START)):
            relay.proceed()
            for n in range(PARTITIONS):
                while relay.out[n]:
                    self.logs[n].append(relay.out[n].pop(0).value)


class Reading:
    """A reader of the topic."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.waters = [HighWater({}) for _ in range(PARTITIONS)]
        self.offsets = [0] * PARTITIONS
        self.taken: list[list[Position]] = [[] for _ in range(PARTITIONS)]

    def read(self) -> None:
        for n, log in enumerate(self.world.logs):
            for value in log[self.offsets[n] :]:
                message = read(value, "here")
                after = Position.of(message.after)
                if isinstance(message, Mark):
                    self.waters[n].passes(STORE, message.position, after)
                elif self.waters[n].takes(STORE, message.position, after):
                    self.taken[n].append(message.position)
            self.offsets[n] = len(log)
        # The reader has every attempt up to the least mark, so the cursor of the store may be there.
        least = min(water.positions[STORE] for water in self.waters)
        assert {p for taken in self.taken for p in taken if p <= least} == {
            p for p in self.stored() if p <= least
        }

    def stored(self) -> list[Position]:
        return [Position(*r[:2]) for r in self.world.rows]  # type: ignore[arg-type]

    def has_all(self) -> None:
        for n, taken in enumerate(self.taken):
            mine = [
                Position(*r[:2])
                for r in self.world.rows
                if topic_partition(str(r[2]), PARTITIONS) == n
            ]  # type: ignore[arg-type]
            assert taken == mine


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "proceed",
                "proceed",
                "deliver",
                "deliver",
                "deliver",
                "commit",
                "crash",
                "lose",
                "drift",
                "read",
            ]
        ),
        st.integers(0, 1),
        st.integers(0, PARTITIONS - 1),
    ),
    max_size=250,
)


@settings(max_examples=examples(300))
@given(steps=STEPS, relays=st.integers(1, 2))
def test_each_attempt_is_taken_once_and_in_order_under_any_behaviour_of_relays(
    steps: list[tuple[str, int, int]], relays: int
) -> None:
    world = World()
    world.relays = [ModelRelay(world) for _ in range(relays)]
    world.rows = [row(n) for n in range(1, 13)]
    reading = Reading(world)
    for what, who, where in steps:
        if what == "read":
            reading.read()
        else:
            world.step(what, who, where)
    world.finish()
    reading.read()
    reading.has_all()


@settings(max_examples=examples(200))
@given(
    steps=STEPS,
    lost=st.lists(st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, 200)), min_size=1),
)
def test_messages_lost_by_kafka_are_never_a_silent_gap(
    steps: list[tuple[str, int, int]], lost: list[tuple[int, int]]
) -> None:
    world = World()
    world.relays = [ModelRelay(world), ModelRelay(world)]
    for _ in range(6):
        world.step("commit", 0, 0)
    for what, who, where in steps:
        if what != "read":
            world.step(what, who, where)
    world.finish()
    for n, index in lost:
        if index < len(world.logs[n]):
            del world.logs[n][index]
    world.step("commit", 0, 0)
    world.finish()  # the marks after the gap show it
    reading = Reading(world)
    try:
        reading.read()
    except CheckFailed as missing:
        assert "the topic does not have them" in str(missing)
    else:
        reading.has_all()


def test_a_mark_shows_which_rows_are_missing() -> None:
    water = HighWater({STORE: Position(0, 4)})
    assert water.takes(STORE, Position(0, 6), Position(0, 4))
    assert not water.takes(STORE, Position(0, 6), Position(0, 4))
    assert not water.takes(STORE, Position(0, 9), Position(0, 8))
    assert (water.doubles, water.early) == (1, 1)
    water.passes(STORE, Position(0, 5), Position(0, 5))
    water.passes(STORE, Position(0, 7), Position(0, 6))
    with pytest.raises(CheckFailed, match=r"after 0\.7 and up to 0\.9"):
        water.passes(STORE, Position(0, 10), Position(0, 9))
    assert water.positions[STORE] == Position(0, 7)


def test_a_message_has_the_values_of_its_bronze_row() -> None:
    [sent] = MessageBatch(STORE, Position(0, 3), 1).attempts([row(7)])
    message = read(sent.value, "here")
    assert isinstance(message, Attempt)
    assert (sent.key, message.task_id, message.after, message.position) == (
        id_text(7),
        id_text(7),
        "0.3",
        Position(1, 7),
    )
    assert message.unique_key_hash == 2363233923  # CRC-32 of "x"
    with pytest.raises(CheckFailed, match="no message of `fairlead pipeline relay`"):
        read(b'{"kind":"other"}', "here")
