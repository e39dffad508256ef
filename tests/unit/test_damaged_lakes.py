"""Readers of the pipeline's files and messages, which another program may have written: damaged ones
raise the documented error of the reader, and no other."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.errors import ConfigurationError
from tests.damage import Reader, try_damaged
from tests.ids import id_of

pytest.importorskip("pyarrow", reason="needs the extra pipeline")
pytest.importorskip("confluent_kafka", reason="needs the extra kafka")

from fairlead.pipeline.alerts.webhook import Deliveries, Notice, Waiting, load
from fairlead.pipeline.errors import BrokenLake, CheckFailed
from fairlead.pipeline.history_rows import RECORDED_FIELDS, recorded_table
from fairlead.pipeline.incidents import heartbeat
from fairlead.pipeline.incidents.watch import KeyMinutes, Rules, Watched, observe
from fairlead.pipeline.jobs.alerts import notice_of
from fairlead.pipeline.source.kafka import heartbeat_rows
from fairlead.pipeline.stream import cursors, messages
from fairlead.pipeline.stream.messages import HighWater
from fairlead.pipeline.warehouse import builds as published
from fairlead.pipeline.warehouse.table import TableState
from fairlead.ports.history import Position

STORE = "2a1f0c4e"
START = "0.0"
PART = "2026-11-21/13"


FOLDERS: list[Path] = []


def files(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Return a reader of the one file `name` of a lake."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = Path(tempfile.mkdtemp(prefix="fairlead-damaged-", dir=memory))
    FOLDERS.append(folder)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)

    def write_and_read(record: bytes) -> object:
        path.write_bytes(record)
        return read(folder)

    return write_and_read


def stream_cursors() -> Reader:
    def read(record: bytes) -> object:
        text = record.decode(errors="replace")
        name = cursors.cursor_name("shop.task.attempts", 2)
        found = TableState(None, {name: text, cursors.store_cursor(STORE): "0.17"}, [], {}, None)
        for store in cursors.topics_beside(found, "other"):
            cursors.topics_of(found, store)
            cursors.streamed_test(found, store)(Position(0, 5), id_of(1))
            cursors.release(found, store, Position(0, 1 << 60))
        cursors.store_position(found, STORE)
        return cursors.cursors_of(found, "shop.task.attempts")

    good = str(cursors.Cursor(7, 4, {STORE: "0.12"})).encode()
    return Reader(read, [good], (BrokenLake,))


def builds() -> Reader:
    good = published.Build("id", {"silver.tasks": 5}, {"bronze.attempts": 4}, [PART], "s", 5)

    def read(record: bytes) -> object:
        found = published._decode(record)
        assert published._decode(msgspec.json.encode(found)) == found
        return found

    return Reader(read, [msgspec.json.encode(good)], (msgspec.DecodeError, ValueError))


def webhook_files() -> Reader:
    notice = Notice("9f0c", "open", "flood", "mail", "acme", "2026", "2026", 4, "flood")
    good = Deliveries([Waiting(1_790_000_000, notice)], [("9f0c", "over", "2026")])
    read = files("webhook.json", lambda folder: load(folder / "webhook.json"))
    return Reader(read, [msgspec.json.encode(good)], (ConfigurationError,))


def attempt_messages() -> Reader:
    values: dict[str, Any] = dict.fromkeys(RECORDED_FIELDS, 5)
    texts = ("task_id", "queue", "name", "fairness_key", "outcome", "next_state", "trigger_path")
    values |= dict.fromkeys(texts, "a")
    values |= dict.fromkeys(("ordering_key", "error_type", "error_text", "node"))
    values["weight"] = 1.0
    attempt = messages.Attempt(STORE, "0.4", 4, **values)
    batch = messages.MessageBatch(STORE, Position(0, 5), 4)
    good = [msgspec.json.encode(attempt), *(sent.value for sent in batch.marks(Position(0, 9)))]

    def read(record: bytes) -> object:
        found = messages.read(record, "here")
        water = HighWater({STORE: Position(0, 4)})
        after = Position.of(found.after)
        if not isinstance(found, messages.Attempt):
            water.passes(found.store_id, found.position, after)
            return None
        water.takes(found.store_id, found.position, after)
        return recorded_table(found.store_id, messages.recorded_of([found]), 5)

    return Reader(read, good, (CheckFailed, ConfigurationError))


def heartbeats() -> Reader:
    at = 1_767_225_600_000_000
    good = [
        heartbeat.Heartbeat(STORE, "mail", "relay", at),
        heartbeat.Heartbeat(
            STORE, "mail", "relay", at + 500_000_000, at, 3, at, 1, False, 5, 40, 900,
            {"acme": 900}, {"node": 2}, ["node"],
        ),
    ]  # fmt: skip

    def read(record: bytes) -> object:
        columns = heartbeat_rows([(5, record), (6, encoded[0])], "a topic")
        offsets = columns["kafka_offset"]
        assert offsets in ((5, 6), (6,))
        assert {len(values) for values in columns.values()} == {len(offsets)}
        found = heartbeat.decode(record)
        watched, keys = Watched(since=at - 10**9, relay="relay"), dict[str, KeyMinutes]()
        alerts = observe(watched, [found], keys, Rules())
        later = msgspec.structs.replace(found, at=found.at + 60_000_000)
        alerts += observe(watched, [later], keys, Rules())
        for alert in alerts:
            notice_of(alert)
        for minutes in keys.values():
            assert max(minutes.minute, minutes.tasks, minutes.before) < 1 << 63
        return msgspec.json.decode(msgspec.json.encode(watched), type=Watched)

    encoded = [heartbeat.encode(each) for each in good]
    return Reader(read, encoded, (msgspec.DecodeError,))


READERS = [
    stream_cursors,
    builds,
    webhook_files,
    attempt_messages,
    heartbeats,
]


@pytest.mark.fuzz
@pytest.mark.parametrize("make", READERS)
def test_a_damaged_file_or_message_raises_nothing_but_the_documented_error(
    make: Callable[[], Reader],
) -> None:
    try:
        try_damaged(make(), make.__name__)
    finally:
        while FOLDERS:
            shutil.rmtree(FOLDERS.pop())
