"""Readers of what the pipeline keeps in a lake, which another program may have written: damaged
records raise the documented error of the reader, and no other."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.damage import Reader, try_damaged

pytest.importorskip("pyarrow", reason="needs the extra pipeline")

from fairlead.pipeline.cursors import attempts_cursor
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.warehouse import builds as published
from fairlead.pipeline.warehouse.table import TableState

STORE = "2a1f0c4e"


def cursors() -> Reader:
    def read(record: bytes) -> object:
        cursor = {f"{STORE}/attempts": record.decode(errors="replace")}
        return attempts_cursor(TableState(None, cursor, [], {}, None), STORE)

    return Reader(read, [b"0.17", b"812.5"], (BrokenLake,))


def builds() -> Reader:
    good = published.Build(
        "id", {"silver.tasks": 5}, {"bronze.attempts": 4}, ["2026-11-21/13"], "s", 5
    )

    def read(record: bytes) -> object:
        found = published._decode(record)
        assert published._decode(msgspec.json.encode(found)) == found
        return found

    return Reader(read, [msgspec.json.encode(good)], (msgspec.DecodeError, ValueError))


@pytest.mark.fuzz
@pytest.mark.parametrize("make", [cursors, builds])
def test_a_damaged_record_raises_nothing_but_the_documented_error(
    make: Callable[[], Reader],
) -> None:
    try_damaged(make(), make.__name__)
