"""The reader of a long lane by fairness key: what it reads, in which order, and how soon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.backends.sql import keyed_reader
from fairlead.backends.sql.channel import DatabaseChannel
from fairlead.backends.sql.keyed_reader import ArrivalReader, KeyedReader
from fairlead.errors import StoreUnavailable
from fairlead.model import Feed, LaneKey, PartitionKey, Trigger
from fairlead.ports.notification import Lane, Notification
from fairlead.ports.trigger_channel import KeyNews
from tests.builders import trigger
from tests.tiers import examples
from tests.virtual_loop import VirtualTime

LANE = LaneKey("q", 0, 5)
CLOCK = VirtualTime()


def row(seq: int, key: str = "") -> Trigger:
    """Return a row; its task has one of two names."""
    return trigger(seq, "pay" if seq % 2 else "mail", key)


class Rows:
    """The rows of one lane, by position, as the task store returns them."""

    def __init__(self) -> None:
        self.keys: dict[int, str] = {}
        self.on_read: Callable[[], object] = lambda: None
        """Called once, during the next read."""
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
        on_read, self.on_read = self.on_read, lambda: None
        on_read()
        if self.fails:
            raise StoreUnavailable("as wanted")
        return found

    def ready(self, lane: LaneKey, above: int, limit: int) -> list[Trigger]:
        return [row(seq, self.keys[seq]) for seq in sorted(self.keys) if seq > above][:limit]

    def lanes(self) -> list[LaneKey]:
        return [LANE]

    def ready_of(self, lane: LaneKey, keys: Sequence[tuple[str, int]], limit: int) -> list[Trigger]:
        found = []
        for key, above in keys:
            assert key
            seqs = [seq for seq in sorted(self.keys) if seq > above and self.keys[seq] == key]
            found += [row(seq, key) for seq in seqs[:limit]]
        return sorted(found, key=lambda trigger: trigger.seq)

    def ready_without(
        self, lane: LaneKey, above: int, limit: int
    ) -> tuple[list[Trigger], int | None]:
        self.searches += 1
        page = [seq for seq in sorted(self.keys) if seq > above][: self.passed]
        found = [row(seq) for seq in page if not self.keys[seq]][:limit]
        if len(found) == limit:
            return found, found[-1].seq
        return found, page[-1] if len(page) == self.passed else None

    def ready_keys(self, lane: LaneKey, above: str, limit: int) -> list[tuple[str, int]]:
        last = {self.keys[seq]: seq for seq in sorted(self.keys)}
        return sorted((key, seq) for key, seq in last.items() if key and key > above)[:limit]


class Choosing:
    """Room that takes `limit` triggers of each of some feeds, and remembers the others."""

    def __init__(self, limit: int = 3, chosen: Iterator[bool] | None = None) -> None:
        self.limit = limit
        self.chosen = chosen
        self.takes_old = True
        self.remembered: dict[Feed, None] = {}

    def ahead(self, lane: LaneKey) -> int:
        return 0

    def behind(self, lane: LaneKey) -> int:
        return 0

    def reads_by_key(self, lane: LaneKey) -> bool:
        return True

    def choose_keys(self, lane: LaneKey, news: KeyNews) -> list[tuple[Feed, int]]:
        told = [*map(Feed, news.announced), *news.found]
        told_again = self.remembered.keys() & {feed for feed in told if not feed.name}
        assert not told_again, "a key was told twice"
        self.remembered |= dict.fromkeys(told)
        chosen = [
            feed
            for feed in self.remembered
            if (self.takes_old or feed.key != "flood")
            and (self.chosen is None or next(self.chosen, True))
        ]
        for feed in chosen:
            del self.remembered[feed]
        return [(feed, self.limit) for feed in chosen]


async def _read_all(reader: KeyedReader, room: Choosing) -> list[Trigger]:
    """Read until nothing is left, with room for all."""
    received: list[Trigger] = []
    while not reader.is_done:
        reader.room_freed()
        received += await reader.read(room) or ()
    return received


@pytest.mark.parametrize("flood", [100, 2000])
def test_a_key_that_arrives_behind_a_flood_is_read_after_three_reads(flood: int) -> None:
    rows, room = Rows(), Choosing()
    rows.keys = dict.fromkeys(range(1, flood + 1), "flood")
    reader = KeyedReader(LANE, 0, 0, rows, CLOCK)

    async def main() -> None:
        await reader.read(room)
        room.takes_old = False
        rows.keys[flood + 1] = "newcomer"
        reader.announced_from(flood + 1)
        began = rows.reads
        received: list[Trigger] = []
        while not received:
            received += [t for t in await reader.read(room) or () if t.fairness_key != "flood"]
        assert [trigger.seq for trigger in received] == [flood + 1]
        assert rows.reads - began <= 3

    asyncio.run(main())


class Ahead(Choosing):
    """Room for more than one page in the order of arrival."""

    def ahead(self, lane: LaneKey) -> int:
        return 1000


def test_a_key_announced_while_the_lane_is_found_to_be_long_waits_for_no_walk() -> None:
    """The flood has more keys than one read of the walk, and the newcomer is the last of them."""
    rows, room = Rows(), Ahead()
    rows.keys = {seq: f"key {seq}" for seq in range(1, 5_001)}
    channel = DatabaseChannel(rows, None, CLOCK)  # type: ignore[arg-type]
    channel.assign({PartitionKey("q", 0): {}})

    def arrive() -> None:
        rows.keys[5_001] = "newcomer"
        channel._on_any_notification(Notification(ready=[Lane("q", 0, 5, 5_001)]))

    async def main() -> None:
        rows.on_read = lambda: setattr(rows, "on_read", arrive)  # during the second read
        assert len(await channel.receive(room)) == 1000
        began, found = rows.reads, list[Trigger]()
        while not found:
            found += [t for t in await channel.receive(room) if t.fairness_key == "newcomer"]
        assert rows.reads - began <= 4

    asyncio.run(main())


@pytest.mark.parametrize("is_long_ago", [False, True])
def test_a_key_announced_before_this_node_reads_the_lane_waits_for_no_walk(
    is_long_ago: bool,
) -> None:
    rows, room, clock = Rows(), Ahead(), VirtualTime()
    rows.keys = {seq: f"key {seq}" for seq in range(1, 5_001)} | {5_001: "newcomer"}
    channel = DatabaseChannel(rows, None, clock)  # type: ignore[arg-type]
    channel._on_any_notification(Notification(ready=[Lane("q", 0, 5, 5_001)]))
    if is_long_ago:
        clock.advance(60.0)
    channel.assign({PartitionKey("q", 0): {}})

    async def main() -> None:
        keys = set[str]()
        while rows.reads <= 8:
            keys |= {trigger.fairness_key for trigger in await channel.receive(room)}
        assert ("newcomer" in keys) is not is_long_ago

    asyncio.run(main())


@pytest.mark.parametrize("is_under_way", [False, True])
@pytest.mark.parametrize(("name", "again"), [("", [3, 4, 5, 6, 7, 8]), ("pay", [3, 5, 7])])
def test_rows_that_the_node_has_left_are_read_again_in_their_order_once_it_asks_for_them(
    name: str, again: list[int], is_under_way: bool
) -> None:
    """Rows of all names or of one, also if they are left again while the key is being read."""
    rows, room = Rows(), Choosing(limit=9)
    rows.keys = dict.fromkeys(range(1, 9), "flood")
    reader = KeyedReader(LANE, 0, 0, rows, CLOCK)

    def leave() -> None:
        reader.read_later({Feed("flood", name): 2})

    async def main() -> None:
        assert len(await _read_all(reader, room)) == 8
        leave()
        room.limit, room.takes_old = 2, False
        assert not await reader.read(room)
        room.takes_old = True
        if is_under_way:
            rows.on_read = leave
        found = [row.seq for row in await _read_all(reader, room)]
        assert found == again

    asyncio.run(main())


def test_the_rows_of_all_names_are_read_together_again_while_one_name_is_read_apart() -> None:
    rows, room = Rows(), Choosing(limit=9)
    rows.keys = dict.fromkeys(range(1, 9), "flood")
    reader = KeyedReader(LANE, 0, 0, rows, CLOCK)

    async def main() -> None:
        assert len(await _read_all(reader, room)) == 8
        reader.read_later({Feed("flood", "pay"): 2})
        rows.on_read = reader.read_together
        assert [row.seq for row in await _read_all(reader, room)] == [3, 4, 5, 6, 7, 8]
        assert reader.is_done

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
        st.tuples(
            st.just("leave"),
            st.tuples(st.integers(1, 6), st.sampled_from(["", "pay"]), st.booleans()),
        ),
        st.tuples(st.just("lose"), st.sampled_from([[""], ["x"], ["y"]])),
        st.tuples(st.just("sweep"), st.just(None)),
    ),
    max_size=60,
)


@settings(max_examples=examples(300), deadline=None)
@given(STEPS, st.integers(1, 4), st.lists(st.booleans(), max_size=40), st.booleans())
def test_each_row_is_read_and_those_of_a_key_come_in_their_order(
    steps: list[tuple[str, Any]], limit: int, choices: list[bool], is_fair: bool
) -> None:
    """Draws submits, transactions that commit late, reads that fail, tasks that run, rows that the
    node leaves, and notifications that are lost. `is_fair`: else the lane has one key."""
    with pytest.MonkeyPatch.context() as patch:
        for name, number in {
            "ANNOUNCED_PAGE": 3,
            "WALK": 2,
            "PAGE": 4,
            "MOST_POSITIONS": 2,
        }.items():
            patch.setattr(keyed_reader, name, number)
        asyncio.run(_run_steps(steps, limit, choices, is_fair))


async def _run_steps(
    steps: list[tuple[str, Any]], limit: int, choices: list[bool], is_fair: bool
) -> None:
    def key_of(row: Trigger) -> str:
        return row.fairness_key if is_fair else ""

    rows, room = Rows(), Choosing(limit, iter(choices))
    rows.passed = 2
    reader = (KeyedReader if is_fair else ArrivalReader)(LANE, 0, 0, rows, CLOCK)
    last = 0
    begun: list[dict[int, str]] = []
    late: set[int] = set()
    unordered: set[str] = set()
    """Keys of which rows of one name were left, or some while others were being read."""
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
                reader.announced_from(min(new))
        elif what == "commit" and begun:
            new = begun.pop(0)
            late |= new.keys()
            rows.keys |= new
            committed |= new.keys()
            reader.announced_from(min(new))
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
        elif what == "leave":
            count, name, is_under_way = value
            left = [one for one in received[-count:] if one.seq in rows.keys]
            left = [one for one in left if not name or one.name == name]
            received = [one for one in received if one not in left]
            if name or is_under_way:
                unordered |= set(map(key_of, left))
            left.sort(key=lambda one: -one.seq)
            feeds = {Feed(key_of(one), name): one.seq - 1 for one in left}
            if is_under_way:
                rows.on_read = partial(reader.read_later, feeds)
                received += await reader.read(room) or ()
                rows.on_read()  # unless there was something to read
                rows.on_read = lambda: None
            else:
                reader.read_later(feeds)
        elif what == "sweep":
            reader.begin_sweep()
    reader.begin_sweep()  # finds what was lost
    room.chosen = None  # takes all keys
    received += await _read_all(reader, room)
    assert {trigger.seq for trigger in received} >= committed
    first: dict[int, str] = {}
    for trigger in received:
        first.setdefault(trigger.seq, key_of(trigger))
    for key in set(first.values()) - unordered:
        seqs = [seq for seq, of in first.items() if of == key and seq not in late]
        assert seqs == sorted(seqs)
