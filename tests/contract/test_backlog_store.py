"""Promises of `fairlead.ports.backlog_store.BacklogStore`, for every adapter on its real
database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

import msgspec
import pytest

from fairlead.clock import SYSTEM_CLOCK
from fairlead.config import Settings
from fairlead.connections import connect
from fairlead.core.ids import IdSource, id_text
from fairlead.errors import BatchTooLarge, ConfigurationError, StoreUnavailable
from fairlead.model import (
    LOWEST,
    LaneKey,
    LaneRecord,
    Level,
    PartitionKey,
    Trigger,
    TriggerPath,
)
from fairlead.ports.backlog_store import BacklogStore, Fenced, OwnedBacklog
from services.postgres import PostgresServer
from tests.builders import trigger
from tests.cassandra_scans import traced

T = TypeVar("T")

PARTITION = PartitionKey("payouts", 3)
LANE = LaneKey(*PARTITION, 5)
AWKWARD = """Robert'); DROP TABLE fairlead_backlog;-- "quoted" \\ %s %(x)s $1 ?1 {x} \u00fc \U0001f9ed\nline\ttab\u200b"""
NO_ID = "no id"

source = IdSource()

Adapter = Any
"""A BacklogStore."""


async def opened(kind: str, url: str) -> Adapter:
    if kind == "cassandra":
        pytest.importorskip(
            "cassandra", reason="the driver is missing: pip install 'fairlead[cassandra]'"
        )
        from fairlead.backends.cassandra.backlog import CassandraBacklogStore

        store = CassandraBacklogStore(url)
        await store.migrate()
        return store
    settings = Settings(url, backlog="database")
    connections = connect(settings, SYSTEM_CLOCK, {}, lambda what, count: None)
    connections.cluster.migrate()
    return connections.backlog


async def closed(store: Adapter) -> None:
    await store.close()
    database = getattr(store, "_database", None)
    if hasattr(database, "close_async"):
        await database.close_async()
    if database is not None:
        database.close()


@pytest.fixture(params=["sqlite", "postgres", "cassandra"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest) -> str:
    """Return the URL of a new database, for each kind of store."""
    fixture = "migrated_cassandra_url" if kind == "cassandra" else f"{kind}_url"
    return str(request.getfixturevalue(fixture))


@pytest.fixture
async def store(kind: str, url: str) -> AsyncIterator[BacklogStore]:
    store = await opened(kind, url)
    yield store
    await closed(store)


@pytest.fixture
async def other(kind: str, url: str, store: Adapter) -> AsyncIterator[BacklogStore]:
    """Return another node's store on the same data."""
    other = await opened(kind, url)
    yield other
    await closed(other)


@pytest.fixture
async def range_id(store: Adapter) -> int:
    """Own the partition; return the range id."""
    return await own(store)


async def own(store: Adapter, partition: PartitionKey = PARTITION) -> int:
    owned = await store.take_over([partition])
    return int(owned[partition].range_id)


def make(count: int, lane: LaneKey = LANE, first: int = 1, **changes: Any) -> list[Trigger]:
    """Return entries with the levels (10, first), (20, first + 1) ..., as a read returns them."""
    return [
        trigger(
            **{
                "id": id_text(new),
                "name": "send",
                "key": f"tenant {n % 7}",
                "path": TriggerPath.SPILL,
                "seq": n,
                "level": Level(10 * (n - first + 1), n),
                "order_at": 1_700_000_000_000_000 + n,
                **lane._asdict(),
                **changes,
            }
        )
        for n, new in enumerate(source.block(count, 1_700_000_000_000_000), first)
    ]


def record_of(entries: list[Trigger], **changes: Any) -> LaneRecord:
    top = entries[-1].level if entries else LOWEST
    assert top is not None
    return msgspec.structs.replace(LaneRecord(max_level=top, read_seq=top.id), **changes)


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat the call while it raises StoreUnavailable, as the port says."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except StoreUnavailable:
                await asyncio.sleep(0.2)


def level_of(entry: Trigger) -> Level:
    assert entry.level is not None
    return entry.level


async def everything(store: Adapter, lane: LaneKey = LANE) -> list[Trigger]:
    return list(await store.read_above(lane, LOWEST, 100_000))


# ownership ----------------------------------------------------------------------------------------


async def test_every_take_over_raises_the_range_id_and_finds_the_records_of_the_previous_owner(
    store: Adapter,
) -> None:
    first = (await store.take_over([PARTITION]))[PARTITION]
    assert first.lanes == {}
    kept = {}
    for priority in (0, 5, 9):
        lane, entries = LaneKey(*PARTITION, priority), make(3, LaneKey(*PARTITION, priority))
        kept[priority] = record_of(entries, buffered=priority)
        await store.write(lane, first.range_id, entries, kept[priority])
    range_ids = [first.range_id]
    for _ in range(3):
        found = (await store.take_over([PARTITION]))[PARTITION]
        assert found.lanes == kept
        range_ids.append(found.range_id)
    assert range_ids == sorted(set(range_ids))
    assert range_ids[0] >= 1


async def test_concurrent_take_overs_get_different_range_ids_and_only_the_greatest_may_write(
    store: Adapter, other: Adapter
) -> None:
    async def take(by: Adapter) -> list[int]:
        return [
            (await insist(lambda: by.take_over([PARTITION])))[PARTITION].range_id for _ in range(5)
        ]

    ours, theirs = await asyncio.gather(take(store), take(other))
    assert ours == sorted(ours) and theirs == sorted(theirs)
    range_ids = sorted(ours + theirs)
    assert len(set(range_ids)) == 10
    for range_id in range_ids[:-1]:
        with pytest.raises(Fenced):
            await store.write(LANE, range_id, make(1), LaneRecord())
    entries = make(1)
    await store.write(LANE, range_ids[-1], entries, record_of(entries))
    assert await everything(other) == entries


async def test_a_take_over_of_one_partition_fences_no_owner_of_another(store: Adapter) -> None:
    neighbours = [PartitionKey("payouts", 4), PartitionKey("payouts2", 3)]
    owned = {partition: await own(store, partition) for partition in [PARTITION, *neighbours]}
    for _ in range(3):
        await own(store)
    for partition in neighbours:
        lane = LaneKey(*partition, 5)
        await store.write(lane, owned[partition], make(1, lane), LaneRecord())
    with pytest.raises(Fenced):
        await store.write(LANE, owned[PARTITION], make(1), LaneRecord())


async def test_a_lane_whose_record_cannot_be_read_begins_anew(
    store: Adapter, range_id: int, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    sound = record_of(make(3), buffered=2)
    await store.write(LANE, range_id, [], sound)
    for priority, broken in ((3, "{"), (4, '{"read_seq":"many"}')):
        if kind == "cassandra":
            params = (priority, broken, *PARTITION, range_id)
            await store.session.batch([("keep_record", params)])
        else:
            await store._database.run_async(
                store._keep_record(LANE._replace(priority=priority), broken)
            )
    found = (await store.take_over([PARTITION]))[PARTITION]
    assert found.lanes == {3: LaneRecord(), 4: LaneRecord(), 5: sound}
    logged = [record for record in caplog.records if record.name == "fairlead.lanes"]
    assert len(logged) == 2
    names = [each.getMessage() for each in logged]
    assert all("fairlead_backlog" in name and "payouts" in name for name in names)
    assert "$.read_seq" in logged[1].error
    await store.write(LaneKey(*PARTITION, 3), found.range_id, [], sound)
    assert (await store.records())[PARTITION].lanes[3] == sound


# writes -------------------------------------------------------------------------------------------


async def test_a_write_by_an_earlier_owner_is_refused_and_changes_nothing(
    store: Adapter, other: Adapter
) -> None:
    earlier = await own(store)
    old = make(5)
    await store.write(LANE, earlier, old, record_of(old))
    later = await own(other)
    new = make(5, first=100)
    await other.write(LANE, later, new, record_of(new, buffered=7))
    before = await everything(other)
    for entries in (make(3, first=200), []):
        with pytest.raises(Fenced, match="payouts"):
            await store.write(LANE, earlier, entries, record_of(entries, buffered=1))
    with pytest.raises(Fenced):
        await store.write(
            LaneKey(*PARTITION, 6), earlier, make(1, LaneKey(*PARTITION, 6)), LaneRecord()
        )
    with pytest.raises(Fenced):
        await store.delete_through(LANE, earlier, Level(10**6, 0))
    assert await everything(other) == before
    assert await everything(other, LaneKey(*PARTITION, 6)) == []
    assert await other.records() == {
        PARTITION: OwnedBacklog(later, {5: record_of(new, buffered=7)})
    }


async def test_a_partition_without_an_owner_refuses_writes(store: Adapter) -> None:
    with pytest.raises(Fenced):
        await store.write(LANE, 1, make(1), LaneRecord())
    with pytest.raises(Fenced):
        await store.delete_through(LANE, 1, Level(10**6, 0))
    assert await everything(store) == []
    assert await store.records() == {}


async def test_a_repeated_write_changes_nothing(store: Adapter, range_id: int) -> None:
    entries = make(20)
    for _ in range(3):
        await store.write(LANE, range_id, entries, record_of(entries))
        assert await everything(store) == entries
        assert (await store.records())[PARTITION].lanes == {5: record_of(entries)}
    more = make(5, first=100)
    # Some entries exist already, as after a write that succeeded in part and is tried again.
    await store.write(LANE, range_id, entries[10:] + more, record_of(more))
    assert len(await everything(store)) == len({entry.level for entry in entries + more})


async def test_a_write_without_entries_saves_the_record_and_leaves_the_rows(
    store: Adapter, range_id: int
) -> None:
    entries = make(3)
    await store.write(LANE, range_id, entries, record_of(entries))
    for n in range(3):
        record = record_of(entries, ack_level=Level(n, n), read_level=Level(n + 1, 0), buffered=n)
        await store.write(LANE, range_id, [], record)
        assert (await store.records())[PARTITION].lanes == {5: record}
    assert await everything(store) == entries


async def test_a_concurrent_read_sees_all_of_a_write_or_nothing(
    store: Adapter, range_id: int, other: Adapter
) -> None:
    entries = make(1000)
    seen = set()
    is_written = asyncio.Event()

    async def write() -> None:
        await store.write(LANE, range_id, entries, record_of(entries))
        is_written.set()

    async def read_often() -> None:
        while True:
            is_last = is_written.is_set()
            count = len(await everything(other))
            kept = (await other.records())[PARTITION].lanes
            seen.add(count)
            if count:
                assert kept == {5: record_of(entries)}
            if is_last:
                return
            await asyncio.sleep(0.001)  # let the writer run, because a read of SQLite does not wait

    await asyncio.gather(write(), read_often())
    assert seen <= {0, 1000}
    assert 1000 in seen


async def test_every_field_of_an_entry_and_of_a_record_is_kept(store: Adapter) -> None:
    lane = LaneKey(AWKWARD[:60], 999, 0)
    texts = [
        "",
        AWKWARD,
        "\u00e9\u0065\u0301",
        " leading and trailing ",
        "\U0001f9ed" * 50,
        "NULL",
        "x" * 2000,
    ]
    weights = [0.001, 1000.0, 1 / 3, 1.0, 700.7, 5e-3, 2.0]
    entries = [
        trigger(
            entry.id,
            name=text or "a name",
            key=text,
            version=1 + n * 2**28,
            queue=lane.queue,
            partition=lane.partition,
            priority=0,
            weight=weight,
            ordering_key=None if n % 3 == 0 else text,
            path=TriggerPath.SPILL,
            seq=n * 2**50,
            level=Level(n * 2**58, (n << 56) + 1),
        )
        for n, (entry, text, weight) in enumerate(zip(make(7, lane), texts, weights, strict=True))
    ]
    entries[1] = msgspec.structs.replace(entries[1], ordering_key="")
    record = LaneRecord(
        ack_level=Level(2**62, 2**62),
        read_level=Level(2**62, 2**62 - 1),
        max_level=Level(2**62, 2**62),
        read_seq=2**55,
        buffered=10_000,
        next_passes=[(text, 2**62 - n) for n, text in enumerate(texts)],
    )
    partition = PartitionKey(lane.queue, lane.partition)
    range_id = await own(store, partition)
    # The trigger path is not stored: entries are read back with the path SPILL.
    sent = [msgspec.structs.replace(entry, path=TriggerPath.HOOK) for entry in entries]
    await store.write(lane, range_id, sent, record)
    found = await store.read_above(lane, LOWEST, 100)
    assert found == entries
    assert [type(getattr(entry, name)) for entry in found for name in entry.__struct_fields__] == [
        type(getattr(entry, name)) for entry in entries for name in entry.__struct_fields__
    ]
    assert (await store.take_over([partition]))[partition].lanes == {0: record}


# reads --------------------------------------------------------------------------------------------


async def test_a_read_returns_entries_above_a_level_ascending_up_to_a_limit_and_none_twice(
    store: Adapter,
    range_id: int,
) -> None:
    # Ten entries for each pass, so that both halves of the level are needed to order them.
    entries = [
        msgspec.structs.replace(entry, level=Level(n // 10 + 1, n % 10 + 1))
        for n, entry in enumerate(make(95))
    ]
    for start in range(0, 95, 19):
        await store.write(LANE, range_id, list(reversed(entries[start::19])), LaneRecord())
    for start in range(19):
        await store.write(LANE, range_id, entries[start::19], record_of(entries))
    assert await everything(store) == entries
    for limit in (1, 7, 10, 94, 95, 96):
        level, read = LOWEST, []
        while page := await store.read_above(LANE, level, limit):
            assert len(page) <= limit
            read += page
            level = page[-1].level
        assert read == entries
    for level in (Level(3, 4), Level(3, 10), Level(3, 11), Level(4, 0), Level(10, 5)):
        above = [entry for entry in entries if entry.level > level]
        assert await store.read_above(LANE, level, 12) == above[:12]
        assert (await store.ahead(LANE, level))[0] == len(above)


async def test_priorities_partitions_and_queues_do_not_mix(store: Adapter) -> None:
    lanes = [
        LaneKey(queue, partition, priority)
        for queue in ("a", "aa", "A", "")
        for partition in (0, 1, 10)
        for priority in (0, 9)
    ]
    owned = {lane[:2]: await own(store, PartitionKey(*lane[:2])) for lane in lanes}
    entries = {lane: make(3, lane) for lane in lanes}  # with the same levels in every lane
    for n, lane in enumerate(lanes):
        await store.write(
            lane, owned[lane[:2]], entries[lane], record_of(entries[lane], buffered=n)
        )
    for lane in lanes:
        assert await store.read_above(lane, LOWEST, 100) == entries[lane]
    cleared = lanes[3]
    await store.delete_through(cleared, owned[cleared[:2]], Level(10**9, 0))
    for n, lane in enumerate(lanes):
        kept = [] if lane == cleared else entries[lane]
        assert await store.read_above(lane, LOWEST, 100) == kept
        assert await store.ahead(lane, LOWEST, Level(10**9, 0)) == (len(kept), len(kept))
        asked = [entry.id for entry in entries[lane]]
        assert sorted(await store.entries(lane, LOWEST, asked), key=level_of) == kept
    assert await store.records() == {
        PartitionKey(*key): OwnedBacklog(
            range_id,
            {
                lane.priority: record_of(entries[lane], buffered=n)
                for n, lane in enumerate(lanes)
                if lane[:2] == key
            },
        )
        for key, range_id in owned.items()
    }


# deletes ------------------------------------------------------------------------------------------


async def test_a_delete_removes_exactly_the_entries_at_or_below_a_level(
    store: Adapter, range_id: int
) -> None:
    entries = [
        msgspec.structs.replace(entry, level=Level(n // 10 + 1, n % 10 + 1))
        for n, entry in enumerate(make(60))
    ]
    record = record_of(entries)
    await store.write(LANE, range_id, entries, record)
    for level in (
        LOWEST,
        Level(1, 1),
        Level(2, 7),
        Level(2, 7),
        Level(2, 3),
        Level(3, 10),
        Level(5, 0),
    ):
        await store.delete_through(LANE, range_id, level)
        entries = [entry for entry in entries if entry.level > level]
        assert await everything(store) == entries
    assert (await store.records())[PARTITION] == OwnedBacklog(range_id, {5: record})
    # A delete leaves entries above its level, also those written before.
    more = make(3, first=5)
    await store.write(
        LANE, range_id, [msgspec.structs.replace(e, level=Level(100, e.seq)) for e in more], record
    )
    assert len(await everything(store)) == len(entries) + 3
    await store.delete_through(LANE, range_id, Level(10**6, 0))
    assert await everything(store) == []


# lookups ------------------------------------------------------------------------------------------


async def test_entries_returns_all_entries_of_tasks_above_a_level(
    store: Adapter, range_id: int
) -> None:
    entries = make(250)
    again = msgspec.structs.replace(entries[7], version=4, level=Level(5000, 5000))
    await store.write(LANE, range_id, [*entries, again], record_of([*entries, again]))
    asked = [*(entry.id for entry in [*entries, *make(2)]), NO_ID]

    async def found(level: Level, asked: list[str]) -> list[Trigger]:
        return sorted(await store.entries(LANE, level, asked), key=level_of)

    assert await found(LOWEST, asked) == [*entries, again]
    assert await found(entries[9].level, asked) == [*entries[10:], again]
    assert await found(Level(5000, 5000), asked) == []
    assert await found(LOWEST, [entries[7].id]) == [entries[7], again]
    assert await found(LOWEST, []) == []


async def test_ahead_counts_the_entries_and_the_fairness_keys_between_two_levels(
    store: Adapter,
    range_id: int,
) -> None:
    entries = make(30)
    await store.write(LANE, range_id, entries, record_of(entries))
    for above, through in ((LOWEST, entries[0].level), (entries[3].level, entries[3].level)):
        assert await store.ahead(LANE, above, through) == (0, 0)
    assert await store.ahead(LANE, LOWEST, entries[3].level) == (3, 3)
    assert await store.ahead(LANE, entries[3].level, entries[14].level) == (10, 7)
    assert await store.ahead(LANE, LOWEST, Level(10**6, 0)) == (30, 7)
    assert await store.ahead(LANE, LOWEST, Level(10**6, 0), 3) == (3, 3)
    assert await store.ahead(LANE, entries[9].level) == (20, 7)


# crashes ------------------------------------------------------------------------------------------


async def written_before_a_crash(store: Adapter) -> tuple[OwnedBacklog, list[Trigger]]:
    """Write, delete and write again; return the entries that are left."""
    range_id = await own(store)
    entries, last = make(100), make(1, first=1000, level=Level(100_000, 1000))
    await store.write(LANE, range_id, entries, record_of(entries))
    await store.delete_through(LANE, range_id, entries[9].level)
    await store.write(LANE, range_id, last, record_of(last))
    return OwnedBacklog(range_id, {5: record_of(last)}), [*entries[10:], *last]


async def test_writes_survive_a_crash_of_postgresql(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    store = await opened("postgres", postgres_url)
    owned, there = await written_before_a_crash(store)
    await closed(store)
    postgres_server.restart("immediate")
    store = await opened("postgres", postgres_url)
    assert await everything(store) == there
    assert await store.records() == {PARTITION: owned}
    await closed(store)


@pytest.fixture
def cassandra_driver() -> Iterator[Any]:
    yield pytest.importorskip(
        "fairlead.backends.cassandra.backlog", reason="pip install 'fairlead[cassandra]'"
    )


async def test_on_cassandra_a_write_cut_short_between_pieces_leaves_a_record_that_loses_nothing(
    cassandra_driver: Any, migrated_cassandra_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cassandra_driver, "MOST_BYTES", 2000)
    store = await opened("cassandra", migrated_cassandra_url)
    range_id = await own(store)
    entries = make(100, first=301)
    record = record_of(entries, ack_level=Level(5, 5), read_seq=400)
    fenced, pieces = store._fenced, []

    async def ends_after_three(lane: LaneKey, range_id: int, statements: list[Any]) -> None:
        if len(pieces) == 3:
            raise StoreUnavailable("cut short")
        pieces.append(statements)
        await fenced(lane, range_id, statements)

    store._fenced = ends_after_three
    with pytest.raises(StoreUnavailable):
        await store.write(LANE, range_id, entries, record)
    landed = await everything(store)
    assert landed == entries[: len(landed)] and 0 < len(landed) < 100
    # The record has no entry above max_level, and has received no trigger of the write.
    assert (await store.records())[PARTITION].lanes == {
        5: msgspec.structs.replace(record, read_seq=300)
    }
    store._fenced = fenced
    await store.write(LANE, range_id, entries, record)
    assert await everything(store) == entries
    assert (await store.records())[PARTITION].lanes == {5: record}
    await closed(store)


async def test_on_cassandra_a_read_above_the_ack_level_scans_no_tombstones(
    cassandra_driver: Any, migrated_cassandra_url: str
) -> None:
    store = await opened("cassandra", migrated_cassandra_url)
    range_id = await own(store)
    entries = make(100)

    async def read(level: Level) -> tuple[list[Any], int]:
        found, scan = await traced(store.session, lambda: store.read_above(LANE, level, 10))
        return found, scan.tombstones

    await store.write(LANE, range_id, entries, record_of(entries))
    assert await read(LOWEST) == (entries[:10], 0)  # a write leaves no tombstones
    await store.delete_through(LANE, range_id, entries[49].level)
    assert await read(LOWEST) == (entries[50:60], 2)
    assert await read(entries[49].level) == (entries[50:60], 0)
    await closed(store)


@pytest.mark.parametrize(
    "url",
    [
        "cassandra://",
        "cassandra:///keyspace",
        "cassandra://u:hush@host",
        "cassandra://u:hush@host/Keyspace",
        "cassandra://u:hush@host/a/b",
        "cassandra://u:hush@host/k;drop",
        "cassandra://u:hush@host:port/k",
        "cassandra://u:hush@host/k?replication=0",
        "cassandra://u:hush@host/k?replication=many",
        "cassandra://u:hush@host/k?replication=dc1:1,dc2",
        "cassandra://u:hush@host/k?replication=dc1:1,dc'2:1",
        "cassandra://u:hush@host/k?local_dc=",
        "cassandra://u:hush@host/k?consistency=ONE",
        "cassandra://u:hush@host/k?consistancy=QUORUM",
    ],
)
def test_the_error_about_a_wrong_cassandra_url_has_no_password(
    cassandra_driver: Any, url: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        cassandra_driver.CassandraUrl.parse(url)
    assert "hush" not in str(raised.value)


def test_a_cassandra_url_has_hosts_login_and_options(cassandra_driver: Any) -> None:
    url = "cassandra://me:p%40ss@one:9043,two/tasks?replication=3&consistency=QUORUM"
    assert cassandra_driver.CassandraUrl.parse(url) == cassandra_driver.CassandraUrl(
        [("one", 9043), ("two", 9042)], "tasks", "me", "p@ss", "3", "QUORUM"
    )
    assert cassandra_driver.CassandraUrl.parse(
        "cassandra://one/tasks"
    ) == cassandra_driver.CassandraUrl([("one", 9042)], "tasks", None, "", "1", "LOCAL_QUORUM")
    two = cassandra_driver.CassandraUrl.parse(
        "cassandra://one/tasks?replication=dc1:3,dc2:2&local_dc=dc2"
    )
    assert two.local_dc == "dc2"
    assert two.strategy == "{'class': 'NetworkTopologyStrategy', 'dc1': 3, 'dc2': 2}"


async def test_a_write_that_the_limits_of_the_server_refuse_is_split_and_loses_no_trigger(
    kind: str, store: Any, range_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind not in ("sqlite", "postgres"):
        pytest.skip("this store has no limit, or splits its writes by bytes")
    entries, insertion, write, writes = make(50), store._insertion, store.write, 0

    def limited(lane: LaneKey, entries: list[Trigger]) -> Any:
        if len(entries) > 6:
            raise BatchTooLarge("raise temp_file_limit")
        return insertion(lane, entries)

    async def checked(*params: Any) -> None:
        nonlocal writes
        writes += 1
        await write(*params)
        # A crash here loses nothing: the record makes the channel bring what is not written.
        found = (await store.records())[PARTITION].lanes[5]
        missing = {one.seq for one in entries} - {one.seq for one in await everything(store)}
        assert not missing or found.read_seq < min(missing)
        assert found.max_level == entries[-1].level

    monkeypatch.setattr(store, "_insertion", limited)
    monkeypatch.setattr(store, "write", checked)
    await store.write(LANE, range_id, entries, record_of(entries))
    assert await everything(store) == entries and writes > 50 // 6
    assert (await store.records())[PARTITION].lanes == {5: record_of(entries)}
