"""The reader of a long lane by fairness key: what it reads, in which order, and how soon."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.backends.sql import keyed_reader
from fairlead.backends.sql.channel import DatabaseChannel
from fairlead.backends.sql.keyed_reader import KeyedReader
from fairlead.errors import StoreUnavailable
from fairlead.model import LaneKey, PartitionKey, Trigger
from fairlead.ports.notification import Lane, Notification
from fairlead.ports.trigger_channel import KeyNews
from tests.builders import trigger
from tests.tiers import examples
from tests.virtual_loop import VirtualTime

LANE = LaneKey("q", 0, 5)
CLOCK = VirtualTime()


class Rows:
    """The rows of one lane, by position, as the task store returns them."""

    def __init__(self) -> None:
        self.keys: dict[int, str] = {}
        self.reads = 0
        self.searches = 0
        """Searches for rows without a key."""
        self.passed = 5000
        """Rows that one of them looks at."""
        self.fails = False

    @property
    def database(self) -> Rows:
        return self

    async def read(self, found: list[Any]) -> list[Any]:
        self.reads += 1
        if self.fails:
            raise StoreUnavailable("as wanted")
        return found

    def ready(self, lane: LaneKey, above: int, limit: int) -> list[Trigger]:
        return [trigger(seq, key=self.keys[seq]) for seq in sorted(self.keys) if seq > above][
            :limit
        ]

    def lanes(self) -> list[LaneKey]:
        return [LANE]

    def ready_of(self, lane: LaneKey, keys: Sequence[tuple[str, int]], limit: int) -> list[Trigger]:
        found = []
        for key, above in keys:
            assert key
            seqs = [seq for seq in sorted(self.keys) if seq > above and self.keys[seq] == key]
            found += [trigger(seq, key=key) for seq in seqs[:limit]]
        return sorted(found, key=lambda trigger: trigger.seq)

    def ready_without(
        self, lane: LaneKey, above: int, limit: int
    ) -> tuple[list[Trigger], int | None]:
        self.searches += 1
        page = [seq for seq in sorted(self.keys) if seq > above][: self.passed]
        found = [trigger(seq) for seq in page if not self.keys[seq]][:limit]
        if len(found) == limit:
            return found, found[-1].seq
        return found, page[-1] if len(page) == self.passed else None

    def ready_keys(self, lane: LaneKey, above: str, limit: int) -> list[tuple[str, int]]:
        last = {self.keys[seq]: seq for seq in sorted(self.keys)}
        return sorted((key, seq) for key, seq in last.items() if key and key > above)[:limit]


class Choosing:
    """Room that takes `limit` triggers of each of some keys, and remembers the others."""

    def __init__(self, limit: int = 3, chosen: Iterator[bool] | None = None) -> None:
        self.limit = limit
        self.chosen = chosen
        self.takes_old = True
        self.remembered: dict[str, None] = {}

    def ahead(self, lane: LaneKey) -> int:
        return 0

    def behind(self, lane: LaneKey) -> int:
        return 0

    def of_keys(self, lane: LaneKey, news: KeyNews) -> list[tuple[str, int]]:
        told = [*news.announced, *news.found]
        assert not self.remembered.keys() & told, "a key was told twice"
        self.remembered |= dict.fromkeys(told)
        chosen = [
            key
            for key in self.remembered
            if (self.takes_old or key != "flood")
            and (self.chosen is None or next(self.chosen, True))
        ]
        for key in chosen:
            del self.remembered[key]
        return [(key, self.limit) for key in chosen]


async def _read_all(reader: KeyedReader, room: Choosing) -> list[Trigger]:
    """Read until nothing is left, with room for all."""
    received: list[Trigger] = []
    while not reader.is_done:
        reader.room_freed()
        received += await reader.read(room) or ()
    return received


@pytest.mark.parametrize("flood", [100, 1000, 5000])
def test_a_key_that_arrives_behind_a_flood_is_read_after_three_reads(flood: int) -> None:
    rows, room = Rows(), Choosing()
    rows.keys = dict.fromkeys(range(1, flood + 1), "flood")
    reader = KeyedReader(LANE, 0, 0, rows, CLOCK)

    async def main() -> None:
        await reader.read(room)
        room.takes_old = False
        rows.keys[flood + 1] = "newcomer"
        reader.look_from(flood + 1)
        began = rows.reads
        received: list[Trigger] = []
        while not received:
            received += [t for t in await reader.read(room) or () if t.fairness_key != "flood"]
        assert [trigger.seq for trigger in received] == [flood + 1]
        assert rows.reads - began <= 3

    asyncio.run(main())


def test_a_key_inside_a_flood_is_found_by_the_walk_over_the_keys() -> None:
    rows, room = Rows(), Choosing()
    reader = KeyedReader(LANE, 0, 0, rows, CLOCK)
    rows.keys = dict.fromkeys(range(1, 2001), "flood")

    async def main() -> None:
        while await reader.read(room) is not None:
            pass
        room.takes_old = False
        rows.keys |= dict.fromkeys(range(2001, 4001), "flood") | {4001: "inside"}
        rows.keys |= dict.fromkeys(range(4002, 6001), "flood")
        reader.look_from(2001)
        began, received = rows.reads, []
        while not received:
            received += [t for t in await reader.read(room) or () if t.fairness_key == "inside"]
        assert rows.reads - began <= 4

    asyncio.run(main())


def test_a_key_announced_while_the_lane_is_found_to_be_long_waits_for_no_walk() -> None:
    """The flood has more keys than one read of the walk, and the newcomer is the last of them."""

    class Ahead(Choosing):
        def ahead(self, lane: LaneKey) -> int:
            return 1000

    rows, room = Rows(), Ahead()
    rows.keys = {seq: f"key {seq}" for seq in range(1, 20_001)}
    channel = DatabaseChannel(rows, None, CLOCK)  # type: ignore[arg-type]
    channel.assign({PartitionKey("q", 0): {}})

    async def main() -> None:
        while channel.floor(LANE) is None:
            received = await channel.receive(room)
            if received and received[-1].seq == 1000:
                rows.keys[20_001] = "newcomer"
                channel._on_any_notification(Notification(ready=[Lane("q", 0, 5, 20_001)]))
        began, found = rows.reads, list[Trigger]()
        while not found:
            found += [t for t in await channel.receive(room) if t.fairness_key == "newcomer"]
        assert rows.reads - began <= 4

    asyncio.run(main())


@pytest.mark.parametrize("is_long_ago", [False, True])
def test_a_key_announced_before_this_node_reads_the_lane_waits_for_no_walk(
    is_long_ago: bool,
) -> None:
    class Ahead(Choosing):
        def ahead(self, lane: LaneKey) -> int:
            return 1000

    rows, room, clock = Rows(), Ahead(), VirtualTime()
    rows.keys = {seq: f"key {seq}" for seq in range(1, 20_001)} | {20_001: "newcomer"}
    channel = DatabaseChannel(rows, None, clock)  # type: ignore[arg-type]
    channel._on_any_notification(Notification(ready=[Lane("q", 0, 5, 20_001)]))
    if is_long_ago:
        clock.advance(60.0)
    channel.assign({PartitionKey("q", 0): {}})

    async def main() -> None:
        keys = set[str]()
        while rows.reads <= 8:
            keys |= {trigger.fairness_key for trigger in await channel.receive(room)}
        assert ("newcomer" in keys) is not is_long_ago

    asyncio.run(main())


class Floods(Rows):
    """Long lanes of several queues, each with rows of its own."""

    def __init__(self, lanes: int, length: int) -> None:
        super().__init__()
        self.lanes_of = {LaneKey(f"q{n}", 0, n % 10): Rows() for n in range(lanes)}
        for number, rows in enumerate(self.lanes_of.values()):
            keys = 10 if number % 2 else length
            rows.keys = {seq: f"key {seq % keys}" for seq in range(1, length + 1)}
            rows.passed = 100

    def ready(self, lane: LaneKey, above: int, limit: int) -> list[Trigger]:
        return self.lanes_of[lane].ready(lane, above, limit)

    def lanes(self) -> list[LaneKey]:
        return [*self.lanes_of]

    def ready_of(self, lane: LaneKey, keys: Sequence[tuple[str, int]], limit: int) -> list[Trigger]:
        return self.lanes_of[lane].ready_of(lane, keys, limit)

    def ready_without(
        self, lane: LaneKey, above: int, limit: int
    ) -> tuple[list[Trigger], int | None]:
        return self.lanes_of[lane].ready_without(lane, above, limit)

    def ready_keys(self, lane: LaneKey, above: str, limit: int) -> list[tuple[str, int]]:
        return self.lanes_of[lane].ready_keys(lane, above, limit)


class Rooms(Choosing):
    """Room in each of several lanes, which have a page of it at first and take a few rows at any
    time."""

    def __init__(self) -> None:
        super().__init__()
        self.of_lane: dict[LaneKey, Choosing] = {}

    def ahead(self, lane: LaneKey) -> int:
        return 1000

    def of_keys(self, lane: LaneKey, news: KeyNews) -> list[tuple[str, int]]:
        if lane not in self.of_lane:
            self.of_lane[lane] = Choosing(limit=1, chosen=itertools.cycle([True, *[False] * 9]))
        chosen = self.of_lane[lane].of_keys(lane, news)
        announced = [key for key in news.announced if key in self.of_lane[lane].remembered]
        for key in announced:
            del self.of_lane[lane].remembered[key]
        return [*((key, 1) for key in announced), *chosen]


@pytest.mark.parametrize("after", [0, 15, 40, 100])
def test_a_new_key_waits_for_few_reads_while_each_of_many_lanes_is_first_read(after: int) -> None:
    """`after`: reads before the new task of a key comes to the lane that is searched last."""
    floods, room = Floods(20, 4000), Rooms()
    channel = DatabaseChannel(floods, None, CLOCK)  # type: ignore[arg-type]
    channel.assign({PartitionKey(lane.queue, lane.partition): {} for lane in floods.lanes_of})
    last = LaneKey("q19", 0, 9)

    async def main() -> None:
        while floods.reads < after:
            channel.room_freed()
            await channel.receive(room)
        floods.lanes_of[last].keys[4001] = "newcomer"
        channel._on_any_notification(Notification(ready=[Lane(*last, 4001)]))
        began, found = floods.reads, False
        while not found:
            channel.room_freed()
            received = await channel.receive(room)
            found = any(trigger.fairness_key == "newcomer" for trigger in received)
        assert floods.reads - began <= 15

    asyncio.run(main())


def test_a_lane_without_tasks_that_have_no_key_is_searched_for_them_in_parts() -> None:
    rows, room = Rows(), Choosing(limit=1000)
    rows.keys = {seq: f"key {seq % 10}" for seq in range(1, 20_001)}
    reader = KeyedReader(LANE, 0, 0, rows, CLOCK)

    async def main() -> None:
        while reader.is_beginning:
            reader.room_freed()
            await reader.read(room)
        assert reader.is_searching and rows.searches <= 2
        rows.keys[20_001] = ""
        reader.look_from(20_001)
        began, found = rows.reads, list[Trigger]()
        while not found:
            reader.room_freed()
            found += [t for t in await reader.read(room) or () if not t.fairness_key]
        assert rows.reads - began <= 30
        assert [t.seq for t in await _read_all(reader, room) if not t.fairness_key] == []

    asyncio.run(main())


def test_a_sweep_reads_again_what_the_node_dropped() -> None:
    rows = Rows()
    rows.keys = {seq: "abc"[seq % 3] for seq in range(1, 31)} | dict.fromkeys(
        range(31, 60), "flood"
    )
    reader, room = KeyedReader(LANE, 0, 0, rows, CLOCK), Choosing(limit=100)

    async def main() -> None:
        while await reader.read(room) is not None:
            pass
        reader.begin_sweep()
        again: list[Trigger] = []
        while reader.is_sweeping:
            again += await reader.sweep(4)
        assert {trigger.seq for trigger in again} == set(range(1, 60))
        assert len(again) == 59

    asyncio.run(main())


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("submit"), st.lists(st.sampled_from(["", *"abcdefg"]), min_size=1, max_size=9)
        ),
        st.tuples(
            st.just("begin"), st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=9)
        ),
        st.tuples(st.just("commit"), st.just(None)),
        st.tuples(st.just("read"), st.booleans()),
        st.tuples(st.just("fail"), st.just(None)),
        st.tuples(st.just("run"), st.integers(0, 20)),
        st.tuples(st.just("lose"), st.sampled_from([[""], ["x"], ["y"]])),
        st.tuples(st.just("sweep"), st.just(None)),
    ),
    max_size=60,
)


@settings(max_examples=examples(300), deadline=None)
@given(STEPS, st.integers(1, 4), st.lists(st.booleans(), max_size=40))
def test_each_row_is_read_and_those_of_a_key_come_in_their_order(
    steps: list[tuple[str, Any]], limit: int, choices: list[bool]
) -> None:
    """Draws submits, transactions that commit late, reads that fail, tasks that run, and
    notifications that are lost."""
    with pytest.MonkeyPatch.context() as patch:
        for name, number in {"LOOK": 3, "WALK": 2, "PAGE": 4, "MOST_POSITIONS": 2}.items():
            patch.setattr(keyed_reader, name, number)
        asyncio.run(_run_steps(steps, limit, choices))


async def _run_steps(steps: list[tuple[str, Any]], limit: int, choices: list[bool]) -> None:
    rows, room = Rows(), Choosing(limit, iter(choices))
    rows.passed = 2
    reader = KeyedReader(LANE, 0, 0, rows, CLOCK)
    last = 0
    begun: list[dict[int, str]] = []
    late: set[int] = set()
    committed: set[int] = set()
    received: list[Trigger] = []
    for what, value in steps:
        if what in ("submit", "begin", "lose"):
            new = {last + n: key for n, key in enumerate(value, 1)}
            last += len(value)
            if what == "begin":
                begun.append(new)
                continue
            rows.keys |= new
            committed |= new.keys()
            if what == "submit":
                reader.look_from(min(new))
        elif what == "commit" and begun:
            new = begun.pop(0)
            late |= new.keys()
            rows.keys |= new
            committed |= new.keys()
            reader.look_from(min(new))
        elif what == "read":
            if value:
                reader.room_freed()
            received += await reader.read(room) or ()
        elif what == "fail":
            rows.fails = True
            with suppress(StoreUnavailable):
                await reader.read(room)
            rows.fails = False
        elif what == "run":
            for trigger in received[:value]:
                rows.keys.pop(trigger.seq, None)
        elif what == "sweep":
            reader.begin_sweep()
    reader.begin_sweep()  # finds what was lost
    room.chosen = None  # takes all keys
    received += await _read_all(reader, room)
    assert {trigger.seq for trigger in received} >= committed
    first: dict[int, str] = {}
    for trigger in received:
        first.setdefault(trigger.seq, trigger.fairness_key)
    for key in set(first.values()):
        seqs = [seq for seq, of in first.items() if of == key and seq not in late]
        assert seqs == sorted(seqs)
