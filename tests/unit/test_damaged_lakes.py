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

pytest.importorskip("pyarrow", reason="needs the extra pipeline")

from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.cursors import attempts_cursor
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.jobs.migrate_lake import OldManifest, OldPart, manifest_of
from fairlead.pipeline.warehouse import builds as published
from fairlead.pipeline.warehouse.table import TableState

STORE = "2a1f0c4e"
PART = "2026-11-21/13"


def a_manifest() -> OldManifest:
    return OldManifest(
        number=3,
        parts={
            PART: OldPart([f"{PART}/a.parquet"], 3),
            "2026-11-20": OldPart(["2026-11-20/b.parquet"], 1),
        },
        cursors={f"{STORE}/attempts": "0.17"},
        erased=["c0ffee"],
        ledger=["_ledger/c.parquet"],
    )


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


def manifests() -> Reader:
    def read(folder: Path) -> object:
        return manifest_of(folder, ATTEMPTS).files

    name = f"{ATTEMPTS.name}/_manifest/000000000003.json"
    good = [msgspec.json.encode(each) for each in (a_manifest(), OldManifest(number=3))]
    return Reader(files(name, read), good, (BrokenLake, ConfigurationError))


def cursors() -> Reader:
    def read(record: bytes) -> object:
        cursor = {f"{STORE}/attempts": record.decode(errors="replace")}
        return attempts_cursor(TableState(None, cursor, [], {}, None), STORE)

    return Reader(read, [b"0.17", b"812.5"], (BrokenLake,))


def builds() -> Reader:
    good = published.Build("id", {"silver.tasks": 5}, {"bronze.attempts": 4}, [PART], 3, "s", 5)

    def read(record: bytes) -> object:
        found = published._decode(record)
        assert published._decode(msgspec.json.encode(found)) == found
        return found

    return Reader(read, [msgspec.json.encode(good)], (msgspec.DecodeError, ValueError))


READERS = [
    manifests,
    cursors,
    builds,
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
        {"parts": {PART: OldPart(["../../etc/passwd"], 0)}},
        {"parts": {PART: OldPart(["/etc/passwd"], 0)}},
        {"ledger": ["../x"]},
    ],
)
def test_a_manifest_that_leads_out_of_its_lake_is_broken(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    path = tmp_path / ATTEMPTS.name / "_manifest" / "000000000003.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(a_manifest(), **change)))
    with pytest.raises(BrokenLake, match=r"000000000003.json"):
        manifest_of(tmp_path, ATTEMPTS)
