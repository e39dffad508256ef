"""The stream into the lake, exactly once by the manifest: whatever is repeated, lost or done twice at once. Without Spark:
the batches are the same, see test_ingest_stream.py for those that Spark makes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="needs the extra kafka")

from fairlead.channels.kafka_place import Place as KafkaPlace
from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.export import Exporter
from fairlead.pipeline.hashing import SECRET, start_hashing
from fairlead.pipeline.jobs.erase import erase
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.table import LakeTable
from fairlead.pipeline.reconcile import reconcile
from fairlead.pipeline.stream.cursors import cursors_of, reached, topics_of
from fairlead.pipeline.stream.relay import Relay
from fairlead.ports.history import START, Place
from fairlead.stores.sql_history import SqlHistory
from tests.pipeline.filling import add_attempts, connected, migrated
from tests.pipeline.tables_by_hand import rows_of
from tests.pipeline.test_erase import files_with
from tests.pipeline.topics import Stream, differences, relay, topic_of


@pytest.fixture
def history(sqlite_url: str) -> Iterator[SqlHistory]:
    store = migrated(sqlite_url)
    yield SqlHistory(store.database)
    store.database.close()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def relaying(history: SqlHistory, kafka_url: str) -> Iterator[Relay]:
    """Its topic is made."""
    one = relay(history, kafka_url)
    one.round()
    yield one
    one.close()


def add(url: str, numbers: range) -> None:
    with connected(url) as connection:
        add_attempts(connection, numbers)


def store_of(history: SqlHistory) -> str:
    return str(history.database.look(history.store_id()))


def cursor(history: SqlHistory, lake: Lake) -> Place:
    return reached(lake.table(ATTEMPTS).manifests.newest(), store_of(history))


def poll(history: SqlHistory, lake: Lake, **more: Any) -> Exporter:
    return Exporter(history, lake, SYSTEM_CLOCK, **more)


def register(history: SqlHistory, lake: Lake) -> None:
    """As `ingest --stream` does first: nothing is cleaned that was not compared."""
    poll(history, lake, attempts="never").round()


def before_each_append(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any], times: int = 1) -> None:
    """Somebody acts between the files of a batch and its manifest; what they do themselves goes through."""
    append, left = LakeTable.append, [times]

    def overtaken(table: LakeTable, *of: Any, **more: Any) -> Any:
        if table.table is ATTEMPTS and left[0]:
            left[0] -= 1
            act()
        return append(table, *of, **more)

    monkeypatch.setattr(LakeTable, "append", overtaken)


# each once ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [6, 1000])
def test_what_was_relayed_is_in_the_lake_as_the_store_has_it(
    store_url: str, lake: Lake, kafka_url: str, most: int
) -> None:
    history = SqlHistory(migrated(store_url).database)
    register(history, lake)
    add(store_url, range(30))
    one = relay(history, kafka_url)
    one.round()
    stream = Stream(lake, kafka_url, most)
    counted = stream.drain()
    assert sum(batch.attempts for batch in counted) == 30 and max(b.messages for b in counted) <= 2 * most
    assert differences(history, lake) == []
    add(store_url, range(30, 35))
    one.round()
    stream.drain()
    assert differences(history, lake) == []
    assert cursor(history, lake) == Place.of(one.round().place)
    exporter = poll(history, lake)
    exporter.round()  # tells the store
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == 35 and exporter.behind() == 0
    one.close()
    history.database.close()


def test_a_batch_that_is_repeated_and_a_lost_checkpoint_change_nothing(
    sqlite_url: str, history: SqlHistory, lake: Lake, kafka_url: str, relaying: Relay
) -> None:
    add(sqlite_url, range(40))
    relaying.round()
    stream = Stream(lake, kafka_url, 9)
    first = stream.plan()
    stream.take(first)  # and dies before its checkpoint knows
    again = stream.take(first)
    assert (again.messages, again.files) == (0, 0)
    stream.batch()
    number = lake.table(ATTEMPTS).manifests.newest().number
    stream.take(first)
    assert lake.table(ATTEMPTS).manifests.newest().number == number
    wider = {n: (0, end) for n, (_, end) in Stream(lake, kafka_url).topic.extents().items()}
    stream.take(wider)  # another cut, as of a lost checkpoint: it begins below what is in, and goes beyond
    assert differences(history, lake) == []
    fresh = Stream(lake, kafka_url)
    assert fresh.drain() == [], "it begins where the lake stands"
    assert differences(history, lake) == []


def test_what_relays_send_twice_is_dropped(
    sqlite_url: str, history: SqlHistory, lake: Lake, kafka_url: str, relaying: Relay
) -> None:
    add(sqlite_url, range(20))
    relaying.round()
    with connected(sqlite_url) as connection:
        connection.execute("UPDATE fairlead_readers SET seq = 3 WHERE kind = 'stream'")  # as if they had died before
    other = relay(history, kafka_url)
    other.round()
    other.close()
    counted = Stream(lake, kafka_url, 4).drain()
    assert sum(batch.doubles for batch in counted) == 17 and sum(batch.attempts for batch in counted) == 20
    assert differences(history, lake) == []


def test_a_driver_that_dies_between_any_two_steps_loses_and_doubles_nothing(
    sqlite_url: str, history: SqlHistory, lake: Lake, kafka_url: str, relaying: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(5)
    stream = Stream(lake, kafka_url, 6)
    append = LakeTable.append

    def dies(table: LakeTable, *of: Any, **more: Any) -> Any:
        if chance.random() < 0.3:
            raise KeyboardInterrupt
        answer = append(table, *of, **more)
        if chance.random() < 0.3:
            raise KeyboardInterrupt
        return answer

    for n in range(0, 72, 12):
        add(sqlite_url, range(n, n + 12))
        relaying.round()
        with monkeypatch.context() as patched:
            patched.setattr(LakeTable, "append", dies)
            try:
                stream.drain()
            except KeyboardInterrupt:
                if chance.random() < 0.5:
                    stream = Stream(lake, kafka_url, chance.randrange(5, 30))
    stream.drain()
    assert differences(history, lake) == []


def test_of_two_streams_at_once_each_row_is_let_in_once(
    sqlite_url: str, history: SqlHistory, lake: Lake, kafka_url: str, relaying: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(sqlite_url, range(30))
    relaying.round()
    one, other = Stream(lake, kafka_url, 10), Stream(lake, kafka_url, 7)
    before_each_append(monkeypatch, other.batch)
    one.drain()
    other.drain()
    assert differences(history, lake) == []
    table = lake.table(ATTEMPTS)
    on_disk = {str(path) for path in table.folder.glob("date=*/**/*.parquet")}
    assert on_disk == set(table.paths(table.manifests.newest())), "what was refused is taken away"


def test_several_stores_share_a_topic(
    sqlite_url: str, history: SqlHistory, lake: Lake, kafka_url: str, relaying: Relay, tmp_path: Path
) -> None:
    other_url = f"sqlite:///{tmp_path / 'other.db'}"
    other = SqlHistory(migrated(other_url).database)
    second = relay(other, kafka_url)
    register(history, lake)
    register(other, lake)
    for n in range(0, 20, 5):
        add(sqlite_url, range(n, n + 5))
        add(other_url, range(n, n + 5))
        relaying.round()
        second.round()
    Stream(lake, kafka_url, 6).drain()
    assert lake.table(ATTEMPTS).manifests.newest().rows == 40
    for each in (history, other):
        assert cursor(each, lake) == Place(0, 20)
        poll(each, lake).round()
        assert reconcile(each, lake, SYSTEM_CLOCK).rows == 20
    second.close()
    other.database.close()


# beside the poller ----------------------------------------------------------------------------------------------------


def test_the_poller_leaves_the_attempts_to_the_stream_and_tells_the_store(
    sqlite_url: str, history: SqlHistory, lake: Lake, kafka_url: str, relaying: Relay
) -> None:
    add(sqlite_url, range(10))
    poll(history, lake, rows=4).round(batches=1)  # the poller has begun
    relaying.round()
    stream = Stream(lake, kafka_url, 3)
    counted = stream.batch()
    assert counted is not None
    add(sqlite_url, range(10, 15))
    done = poll(history, lake).round()
    assert (done.attempts, done.streamed) == (0, topic_of(kafka_url).name)
    relaying.round()
    stream.drain()
    poll(history, lake).round()
    assert differences(history, lake) == []
    reader = history.database.look(history.reader(lake.reader))
    assert reader is not None and reader.place == cursor(history, lake) == Place(0, 15)
    never = poll(history, Lake(lake.root.parent / "other"), attempts="never")
    assert never.round().attempts == 0


def test_a_stream_that_begins_while_the_poller_exports_brings_nothing_twice(
    sqlite_url: str, history: SqlHistory, lake: Lake, kafka_url: str, relaying: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(sqlite_url, range(20))
    relaying.round()
    stream = Stream(lake, kafka_url, 6)
    before_each_append(monkeypatch, stream.batch)
    assert poll(history, lake, rows=5).round().attempts == 0, "the stream was first"
    stream.drain()
    assert differences(history, lake) == []


def test_a_poller_that_exports_while_the_stream_begins_brings_nothing_twice(
    sqlite_url: str, history: SqlHistory, lake: Lake, kafka_url: str, relaying: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(sqlite_url, range(20))
    relaying.round()
    before_each_append(monkeypatch, poll(history, lake, rows=5).round)
    counted = Stream(lake, kafka_url, 6).drain()
    assert (sum(b.attempts for b in counted), counted[0].doubles > 0) == (0, True), "the poller was first"
    assert differences(history, lake) == []


@pytest.mark.parametrize("most", [3, 8])
def test_the_poller_takes_over_exactly_where_each_partition_stands(
    sqlite_url: str, history: SqlHistory, lake: Lake, kafka_url: str, relaying: Relay, most: int
) -> None:
    add(sqlite_url, range(30))
    relaying.round()
    stream = Stream(lake, kafka_url, most)
    ranges = stream.plan()
    stream.take({0: ranges[0]})  # one partition is ahead of the other
    add(sqlite_url, range(30, 33))
    assert poll(history, lake, rows=4).round().attempts == 0
    poll(history, lake, rows=4, attempts="take over").round()
    assert differences(history, lake) == []
    assert topics_of(lake.table(ATTEMPTS).manifests.newest(), store_of(history)) == {}
    add(sqlite_url, range(33, 36))
    assert poll(history, lake).round().attempts == 3, "and goes on as ever"
    relaying.round()
    Stream(lake, kafka_url, most).drain()  # begun again
    assert differences(history, lake) == []
    poll(history, lake, attempts="take over").round()
    assert cursors_of(lake.table(ATTEMPTS).manifests.newest(), topic_of(kafka_url).name) == {}
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == 36


def test_stream_and_poller_and_take_overs_at_once_keep_each_row_once(
    sqlite_url: str, history: SqlHistory, lake: Lake, kafka_url: str, relaying: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(11)
    stream, added = Stream(lake, kafka_url, 5), 0
    append, depth = LakeTable.append, 0

    def meddle() -> None:
        nonlocal stream
        act = chance.choice(["stream", "fresh", "poll", "take over"])
        if act == "fresh":
            stream = Stream(lake, kafka_url, chance.randrange(1, 12))
        if act in ("stream", "fresh"):
            stream.batch()
        else:
            poll(history, lake, rows=4, attempts="take over" if act == "take over" else "unless streamed").round(
                batches=2
            )

    def meddled(table: LakeTable, *of: Any, **more: Any) -> Any:
        nonlocal depth
        if table.table is ATTEMPTS and depth < 2 and chance.random() < 0.4:
            depth += 1
            meddle()
            depth -= 1
        return append(table, *of, **more)

    monkeypatch.setattr(LakeTable, "append", meddled)
    for _ in range(12):
        more = chance.randrange(1, 9)
        add(sqlite_url, range(added, added + more))
        added += more
        if chance.random() < 0.7:
            relaying.round()
        meddle()
    relaying.round()
    stream.drain()
    assert differences(history, lake) == []


def test_two_topics_bring_no_store_twice(
    sqlite_url: str, history: SqlHistory, lake: Lake, kafka_url: str, relaying: Relay
) -> None:
    add(sqlite_url, range(6))
    relaying.round()
    Stream(lake, kafka_url).drain()
    other_url = kafka_url + "other."
    other = relay(history, other_url)
    other.round()
    with pytest.raises(ConfigurationError, match=r"come into this lake by topic .*take-over"):
        Stream(lake, other_url).drain()
    poll(history, lake, attempts="take over").round()
    Stream(lake, other_url).drain()
    assert differences(history, lake) == []
    other.close()


# gaps -----------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_ahead_of_the_lake_is_refused_and_a_new_one_goes_on(
    sqlite_url: str, history: SqlHistory, lake: Lake, kafka_url: str, relaying: Relay
) -> None:
    add(sqlite_url, range(12))
    relaying.round()
    stream = Stream(lake, kafka_url, 3)
    stream.batch()
    stream.batch()
    table = lake.table(ATTEMPTS)
    (table.manifests.folder / f"{table.manifests.newest().number:012}.json").unlink()
    with pytest.raises(CheckFailed, match="goes on at offset 6, and the lake is at 3.*new checkpoint"):
        stream.batch()
    Stream(lake, kafka_url, 3).drain()
    assert differences(history, lake) == []


def test_what_kafka_keeps_no_longer_is_an_error_and_comes_from_the_store(
    sqlite_url: str, history: SqlHistory, lake: Lake, kafka_url: str, relaying: Relay
) -> None:
    add(sqlite_url, range(12))
    relaying.round()
    stream = Stream(lake, kafka_url, 3)
    stream.batch()
    place = KafkaPlace.of(kafka_url)
    place.trim({(place.attempts, n): 5 for n in range(2)})
    with pytest.raises(CheckFailed, match=r"no longer has offset 3.*retention\.ms.*take-over"):
        stream.take({0: (3, 6)})
    poll(history, lake, attempts="take over").round()
    add(sqlite_url, range(12, 20))
    relaying.round()
    Stream(lake, kafka_url).drain()
    assert differences(history, lake) == []


def test_a_topic_whose_beginning_is_gone_is_an_error_unless_the_lake_has_it(
    sqlite_url: str, history: SqlHistory, lake: Lake, kafka_url: str, relaying: Relay
) -> None:
    add(sqlite_url, range(12))
    relaying.round()
    place = KafkaPlace.of(kafka_url)
    place.trim({(place.attempts, n): 5 for n in range(2)})
    with pytest.raises(CheckFailed, match=r"were sent and are not there.*take-over"):
        Stream(lake, kafka_url).drain()
    assert cursor(history, lake) == START
    poll(history, lake).round()
    Stream(lake, kafka_url).drain()
    assert differences(history, lake) == []


# keys -----------------------------------------------------------------------------------------------------------------


def test_no_clear_key_lands_in_a_hashed_lake(
    sqlite_url: str, history: SqlHistory, lake: Lake, kafka_url: str, relaying: Relay, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setenv(SECRET, "0123456789abcdef secret")
    start_hashing(lake)
    polled = Lake(tmp_path / "polled")
    (polled.root / "_lake").write_text(lake.identity)
    start_hashing(polled)
    add(sqlite_url, range(20))
    relaying.round()
    Stream(lake, kafka_url, 6).drain()
    poll(history, polled).round()

    def rows(where: Lake) -> list[Any]:
        return sorted(({**row, "exported_at": 0} for row in rows_of(where, ATTEMPTS)), key=lambda row: row["seq"])

    assert rows(lake) == rows(polled), "the same as by the poller"
    for n in range(20):
        assert files_with(lake.root, f"tenant-{n % 7}") == [] == files_with(lake.root, f"order-{n}")
    monkeypatch.delenv(SECRET)
    add(sqlite_url, range(20, 22))
    relaying.round()
    with pytest.raises(ConfigurationError, match="no secret"):
        Stream(lake, kafka_url).drain()


def test_a_key_that_was_erased_is_not_let_in_again_and_the_lake_still_agrees(
    sqlite_url: str, history: SqlHistory, lake: Lake, kafka_url: str, relaying: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(history, lake)
    add(sqlite_url, range(20))
    relaying.round()
    stream = Stream(lake, kafka_url, 6)
    stream.batch()
    # Erased between the files of a batch and its manifest: they are made anew.
    before_each_append(monkeypatch, lambda: erase(lake, "tenant-3", SYSTEM_CLOCK))
    stream.drain()
    assert files_with(lake.root, "tenant-3") == []
    assert {row["fairness_key"] for row in rows_of(lake, ATTEMPTS)} == {f"tenant-{n}" for n in range(7)} - {"tenant-3"}
    poll(history, lake).round()
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == 20
