"""The stream writes each attempt to the lake exactly once, by the manifest, in spite of repeated, lost
and concurrent batches. These tests run the batches without Spark; test_ingest_stream.py uses Spark."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="needs the extra kafka")

from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.history_rows import RECORDED_FIELDS
from fairlead.pipeline.jobs.erase import erase
from fairlead.pipeline.reconcile import reconcile
from fairlead.pipeline.stream.cursors import cursors_of, topics_of
from fairlead.pipeline.stream.messages import recorded_of
from fairlead.pipeline.warehouse.table import WarehouseTable
from fairlead.ports.history import START, Position
from tests.pipeline.filling import connected
from tests.pipeline.tables_by_hand import rows_of
from tests.pipeline.test_erase import files_with
from tests.pipeline.topics import Relayed, Stream, relay, relayed_at, topic_of
from tests.pipeline.warehouses import lake_in, root_of
from tests.tiers import matrix


@pytest.fixture
def relayed(sqlite_url: str, tmp_path: Path, kafka_url: str) -> Iterator[Relayed]:
    with relayed_at(sqlite_url, tmp_path, kafka_url) as one:
        yield one


def before_each_append(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any], times: int = 1
) -> None:
    """In the first `times` appends, call `act` between the files of a batch and its manifest, except in an
    append by `act` itself."""
    append, left = WarehouseTable.append, [times]

    def overtaken(table: WarehouseTable, *args: Any, **kwargs: Any) -> Any:
        if table.table is ATTEMPTS and left[0]:
            left[0] -= 1
            act()
        return append(table, *args, **kwargs)

    monkeypatch.setattr(WarehouseTable, "append", overtaken)


# exactly once ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", matrix(1000, 6))
def test_relayed_attempts_in_the_lake_equal_those_in_the_store(
    store_url: str, tmp_path: Path, kafka_url: str, most: int
) -> None:
    with relayed_at(store_url, tmp_path, kafka_url) as relayed:
        relayed.register()
        relayed.bring(range(30))
        stream = relayed.stream(most)
        counted = stream.drain()
        assert (
            sum(batch.attempts for batch in counted) == 30
            and max(b.messages for b in counted) <= 2 * most
        )
        assert relayed.differences() == []
        relayed.bring(range(30, 35))
        stream.drain()
        assert relayed.differences() == []
        assert relayed.cursor() == Position.of(relayed.relay.round().position)
        exporter = relayed.poll()
        exporter.round()  # reports the position to the store
        assert (
            reconcile(relayed.history, relayed.lake, SYSTEM_CLOCK).rows == 35
            and exporter.behind() == 0
        )


def test_a_batch_that_is_repeated_and_a_lost_checkpoint_change_nothing(relayed: Relayed) -> None:
    relayed.bring(range(40))
    stream = relayed.stream(9)
    first = stream.plan()
    stream.take(first)  # the stream dies before it writes its checkpoint
    again = stream.take(first)
    assert (again.messages, again.files) == (0, 0)
    stream.batch()
    snapshot = relayed.lake.table(ATTEMPTS).state().snapshot
    stream.take(first)
    assert relayed.lake.table(ATTEMPTS).state().snapshot == snapshot
    wider = {n: (0, end) for n, (_, end) in relayed.stream().topic.extents().items()}
    stream.take(
        wider
    )  # as after a lost checkpoint: a batch that begins below the state of the lake and ends above it
    assert relayed.differences() == []
    fresh = relayed.stream()
    assert fresh.drain() == [], "a new checkpoint begins at the state of the lake"
    assert relayed.differences() == []


def test_attempts_that_relays_send_twice_are_dropped(relayed: Relayed) -> None:
    relayed.bring(range(20))
    with connected(relayed.url) as connection:
        connection.execute(
            "UPDATE fairlead_readers SET seq = 3 WHERE kind = 'stream'"
        )  # as if the relays had died before
    other = relay(relayed.history, relayed.kafka_url)
    other.round()
    other.close()
    counted = relayed.stream(4).drain()
    assert (
        sum(batch.doubles for batch in counted) == 17
        and sum(batch.attempts for batch in counted) == 20
    )
    assert relayed.differences() == []


def test_a_stream_whose_driver_dies_between_any_two_steps_loses_and_doubles_nothing(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(5)
    stream = relayed.stream(6)
    append = WarehouseTable.append

    def dies(table: WarehouseTable, *args: Any, **kwargs: Any) -> Any:
        if chance.random() < 0.3:
            raise KeyboardInterrupt
        result = append(table, *args, **kwargs)
        if chance.random() < 0.3:
            raise KeyboardInterrupt
        return result

    for n in range(0, 72, 12):
        relayed.bring(range(n, n + 12))
        with monkeypatch.context() as patched:
            patched.setattr(WarehouseTable, "append", dies)
            try:
                stream.drain()
            except KeyboardInterrupt:
                if chance.random() < 0.5:
                    stream = relayed.stream(chance.randrange(5, 30))
    stream.drain()
    assert relayed.differences() == []


def test_two_concurrent_streams_admit_each_row_once(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    relayed.bring(range(30))
    one, other = relayed.stream(10), relayed.stream(7)
    before_each_append(monkeypatch, other.batch)
    one.drain()
    other.drain()
    assert relayed.differences() == []
    table = relayed.lake.table(ATTEMPTS)
    data = root_of(relayed.lake) / "fairlead/bronze_attempts/data"
    assert {f"file://{path}" for path in data.iterdir()} == {file.path for file in table.files()}, (
        "the files of the refused batch are removed"
    )


def test_several_stores_share_a_topic(relayed: Relayed, tmp_path: Path) -> None:
    with relayed_at(f"sqlite:///{tmp_path / 'other.db'}", tmp_path, relayed.kafka_url) as other:
        both = (relayed, other)
        for each in both:
            each.register()
        for n in range(0, 20, 5):
            for each in both:
                each.add(range(n, n + 5))
            for each in both:
                each.relay.round()
        relayed.stream(6).drain()
        assert relayed.lake.table(ATTEMPTS).load().num_rows == 40
        for each in both:
            assert each.cursor() == Position(0, 20)
            each.poll().round()
            assert reconcile(each.history, each.lake, SYSTEM_CLOCK).rows == 20


# beside the poller --------------------------------------------------------------------------------


def test_beside_a_stream_the_poller_exports_no_attempts_and_records_their_position(
    relayed: Relayed,
) -> None:
    relayed.add(range(10))
    relayed.poll(rows=4).round(batches=1)  # the poller has exported a batch
    relayed.relay.round()
    stream = relayed.stream(3)
    counted = stream.batch()
    assert counted is not None
    relayed.add(range(10, 15))
    done = relayed.poll().round()
    assert (done.attempts, done.streamed) == (0, topic_of(relayed.kafka_url).name)
    relayed.relay.round()
    stream.drain()
    relayed.poll().round()
    assert relayed.differences() == []
    reader = relayed.history.database.read_now(relayed.history.reader(relayed.lake.reader))
    assert reader is not None and reader.position == relayed.cursor() == Position(0, 15)
    never = relayed.poll(lake_in(root_of(relayed.lake).parent / "other"), attempts="never")
    assert never.round().attempts == 0


def test_a_stream_that_begins_while_the_poller_exports_doubles_nothing(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    relayed.bring(range(20))
    stream = relayed.stream(6)
    before_each_append(monkeypatch, stream.batch)
    assert relayed.poll(rows=5).round().attempts == 0, "the stream has written the attempts before"
    stream.drain()
    assert relayed.differences() == []


def test_a_poller_that_exports_while_the_stream_begins_doubles_nothing(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    relayed.bring(range(20))
    before_each_append(monkeypatch, relayed.poll(rows=5).round)
    counted = relayed.stream(6).drain()
    assert (sum(b.attempts for b in counted), counted[0].doubles > 0) == (0, True), (
        "the poller has written the attempts before"
    )
    assert relayed.differences() == []


@pytest.mark.parametrize("most", matrix(8, 3))
def test_the_poller_takes_over_exactly_at_the_position_of_each_partition(
    relayed: Relayed, most: int
) -> None:
    relayed.bring(range(30))
    stream = relayed.stream(most)
    ranges = stream.plan()
    stream.take({0: ranges[0]})  # one partition is ahead of the other
    relayed.add(range(30, 33))
    assert relayed.poll(rows=4).round().attempts == 0
    relayed.poll(rows=4, attempts="take over").round()
    assert relayed.differences() == []
    assert topics_of(relayed.lake.table(ATTEMPTS).state(), relayed.store_id) == {}
    relayed.add(range(33, 36))
    assert relayed.poll().round().attempts == 3, "the poller continues as before"
    relayed.relay.round()
    relayed.stream(most).drain()  # the stream is started again
    assert relayed.differences() == []
    relayed.poll(attempts="take over").round()
    assert cursors_of(relayed.lake.table(ATTEMPTS).state(), topic_of(relayed.kafka_url).name) == {}
    assert reconcile(relayed.history, relayed.lake, SYSTEM_CLOCK).rows == 36


def test_concurrent_streams_polls_and_take_overs_write_each_row_once(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(11)
    stream, added = relayed.stream(5), 0
    append, depth = WarehouseTable.append, 0

    def meddle() -> None:
        nonlocal stream
        act = chance.choice(["stream", "fresh", "poll", "take over"])
        if act == "fresh":
            stream = relayed.stream(chance.randrange(1, 12))
        if act in ("stream", "fresh"):
            stream.batch()
        else:
            relayed.poll(
                rows=4, attempts="take over" if act == "take over" else "unless streamed"
            ).round(batches=2)

    def meddled(table: WarehouseTable, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if table.table is ATTEMPTS and depth < 2 and chance.random() < 0.4:
            depth += 1
            meddle()
            depth -= 1
        return append(table, *args, **kwargs)

    monkeypatch.setattr(WarehouseTable, "append", meddled)
    for _ in range(12):
        more = chance.randrange(1, 9)
        relayed.add(range(added, added + more))
        added += more
        if chance.random() < 0.7:
            relayed.relay.round()
        meddle()
    relayed.relay.round()
    stream.drain()
    assert relayed.differences() == []


def test_two_topics_of_one_store_double_no_row(relayed: Relayed) -> None:
    relayed.bring(range(6))
    relayed.stream().drain()
    other_url = relayed.kafka_url + "other."
    other = relay(relayed.history, other_url)
    other.round()
    with pytest.raises(ConfigurationError, match=r"come into this lake by topic .*take-over"):
        Stream(relayed.lake, other_url).drain()
    relayed.poll(attempts="take over").round()
    Stream(relayed.lake, other_url).drain()
    assert relayed.differences() == []
    other.close()


# gaps ---------------------------------------------------------------------------------------------


def test_a_checkpoint_ahead_of_the_lake_is_refused_and_a_new_one_continues(
    relayed: Relayed,
) -> None:
    relayed.bring(range(12))
    stream = relayed.stream(3)
    stream.batch()
    catalog = root_of(relayed.lake) / "catalog.db"
    backup = catalog.read_bytes()
    stream.batch()
    catalog.write_bytes(backup)
    with pytest.raises(
        CheckFailed, match="continues at offset 6, but the lake is at 3.*new checkpoint"
    ):
        stream.batch()
    relayed.stream(3).drain()
    assert relayed.differences() == []


def test_attempts_that_kafka_has_deleted_are_an_error_and_can_be_exported_from_the_store(
    relayed: Relayed,
) -> None:
    relayed.bring(range(12))
    stream = relayed.stream(3)
    stream.batch()
    relayed.trim(5)
    with pytest.raises(CheckFailed, match=r"no longer has offset 3.*retention\.ms.*take-over"):
        stream.take({0: (3, 6)})
    relayed.poll(attempts="take over").round()
    relayed.bring(range(12, 20))
    relayed.stream().drain()
    assert relayed.differences() == []


def test_a_topic_without_its_first_messages_is_an_error_unless_the_lake_has_them(
    relayed: Relayed,
) -> None:
    relayed.bring(range(12))
    relayed.trim(5)
    with pytest.raises(CheckFailed, match=r"the topic does not have them.*take-over"):
        relayed.stream().drain()
    assert relayed.cursor() == START
    relayed.poll().round()
    relayed.stream().drain()
    assert relayed.differences() == []


# keys ---------------------------------------------------------------------------------------------


def test_an_erased_key_is_not_admitted_again_and_the_lake_still_agrees(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    relayed.register()
    relayed.bring(range(20))
    stream = relayed.stream(6)
    stream.batch()
    # The key is erased between the files of a batch and its manifest, so the batch is written again.
    before_each_append(monkeypatch, lambda: erase(relayed.lake, "tenant-3", SYSTEM_CLOCK))
    stream.drain()
    assert files_with(root_of(relayed.lake), "tenant-3") == []
    assert {row["fairness_key"] for row in rows_of(relayed.lake, ATTEMPTS)} == {
        f"tenant-{n}" for n in range(7)
    } - {"tenant-3"}
    relayed.poll().round()
    assert reconcile(relayed.history, relayed.lake, SYSTEM_CLOCK).rows == 20


def test_a_page_without_attempts_has_empty_columns() -> None:
    assert recorded_of([]) == dict.fromkeys(RECORDED_FIELDS, ())
