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

from fairlead.pipeline import build_plan
from fairlead.pipeline.alerts.webhook import Deliveries, Notice, Waiting, load
from fairlead.pipeline.errors import BrokenLake, CheckFailed
from fairlead.pipeline.history_rows import RECORDED_FIELDS, recorded_table
from fairlead.pipeline.incidents import heartbeat
from fairlead.pipeline.incidents.key_minutes import KeyMinutes
from fairlead.pipeline.incidents.watch import Rules, Watched, observe
from fairlead.pipeline.jobs import backfill
from fairlead.pipeline.jobs.alerts import notice_of
from fairlead.pipeline.lake import leases, manifest
from fairlead.pipeline.lake.manifest import Manifest, Manifests, TablePart
from fairlead.pipeline.lake.parts import PartState, micros_of
from fairlead.pipeline.source.kafka_tables import HEARTBEATS_SENT
from fairlead.pipeline.stream import cursors, messages
from fairlead.pipeline.stream.high_water import HighWater
from fairlead.ports.history import Position

STORE = "2a1f0c4e"
START = "0.0"
PART = "2026-11-21/13"


def a_manifest() -> Manifest:
    cursor = cursors.Cursor(7, 4, {STORE: "0.12"})
    return Manifest(
        number=3,
        written_at=5,
        parts={
            PART: TablePart([f"{PART}/a.parquet"], 3, 900, 5, {"run_at": (1, 2)}),
            "2026-11-20": TablePart(["2026-11-20/b.parquet"], 1, 90, 5),
        },
        cursors={
            cursors.cursor_name("shop.task.attempts", 2): str(cursor),
            cursors.store_cursor(STORE): "0.17",
        },
        dropped={f"{PART}/old.parquet": 5},
        erased=["c0ffee"],
        ledger=["_ledger/c.parquet"],
    )


def manifests() -> Reader:
    def read(record: bytes) -> object:
        found = manifest.decode(record, 3, "a path")
        update = msgspec.structs.replace(found, number=found.number + 1)
        assert manifest.decode(msgspec.json.encode(update), 4, "a path") == update
        for name in found.parts:
            assert micros_of(name) < 1 << 63
        for store in cursors.topics_by_store(found):
            cursors.topics_of(found, store)
            cursors.streamed_test(found, store)(Position(0, 5), id_of(1))
            cursors.release(found, store, Position(0, 1 << 60))
        cursors.store_position(found, STORE)
        return cursors.cursors_of(found, "shop.task.attempts"), found.rows

    good = [msgspec.json.encode(each) for each in (a_manifest(), Manifest(number=3))]
    return Reader(read, good, (BrokenLake, ConfigurationError))


FOLDERS: list[Path] = []


def files(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Return a reader of the one file `name` of a lake."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = Path(tempfile.mkdtemp(prefix="fairlead-damaged-", dir=memory))
    FOLDERS.append(folder)
    path = folder / name
    path.parent.mkdir(exist_ok=True)

    def write_and_read(record: bytes) -> object:
        path.write_bytes(record)
        return read(folder)

    return write_and_read


def reader_leases() -> Reader:
    good = msgspec.json.encode(leases.ReaderLease("me", 1e12))
    return Reader(files("_leases/a.json", leases.live), [good], ())


def builds() -> Reader:
    good = build_plan.Built(
        build_plan.EDITION, "settings", {PART: PartState(3, 5)}, {}, 5, ["2026-11-21/14"]
    )

    def read(root: Path) -> object:
        before = build_plan.last_build(root)
        found = build_plan.plan(a_manifest(), Manifest(), before, "settings", False)
        return found.is_empty, [micros_of(hour) for hour in before.again]

    return Reader(files("_build.json", read), [msgspec.json.encode(good)], ())


def backfills() -> Reader:
    good = msgspec.json.encode(backfill._BackfillProgress("what", ["2026-11-21"]))
    read = files("progress", lambda folder: backfill._progress(folder / "progress", "what"))
    return Reader(read, [good], ())


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
    attempt = messages.Attempt(STORE, "0.4", 4, 1, **values)
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
        return recorded_table(found.store_id, messages.recorded_of([found]), 1, 5)

    return Reader(read, good, (CheckFailed, ConfigurationError))


class Keys(dict[str, KeyMinutes]):
    """Keys of a queue in memory."""

    def put(self, key: str, minutes: KeyMinutes) -> None:
        self[key] = minutes


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
        offsets, columns = HEARTBEATS_SENT.rows([(5, record), (6, encoded[0])], "a topic")
        assert offsets in ([5, 6], [6])
        assert {len(values) for values in columns.values()} == {len(offsets)}
        found = heartbeat.decode(record)
        watched, keys = Watched(since=at - 10**9, relay="relay"), Keys()
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
    manifests,
    reader_leases,
    builds,
    backfills,
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


@pytest.mark.parametrize(
    "change",
    [
        {"number": 10**12},
        {"parts": {"../x": TablePart([], 0, 0, 0)}},
        {"parts": {"2026-02-30": TablePart([], 0, 0, 0)}},
        {"parts": {PART: TablePart(["../../etc/passwd"], 0, 0, 0)}},
        {"parts": {PART: TablePart(["/etc/passwd"], 0, 0, 0)}},
        {"ledger": ["../x"]},
        {"dropped": {"a/../../x": 5}},
        {"cursors": {"kafka/topic/x": "{}"}},
    ],
)
def test_a_manifest_that_leads_out_of_its_lake_is_broken(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    lake = Manifests(tmp_path)
    lake.folder.mkdir()
    encoded = msgspec.json.encode(msgspec.structs.replace(a_manifest(), **change))
    (lake.folder / "000000000003.json").write_bytes(encoded)
    with pytest.raises(BrokenLake, match=r"000000000003.json|cursor"):
        cursors.topics_by_store(lake.newest())
