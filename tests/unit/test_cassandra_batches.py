"""Batches of statements for Cassandra: no larger than its server takes, whatever the texts."""

from __future__ import annotations

import pytest

pytest.importorskip("cassandra", reason="needs the extra cassandra")

from fairlead.backends.cassandra.backlog import _pieces
from fairlead.backends.cassandra.schedule_writes import Write, batches_of
from fairlead.backends.cassandra.session import MOST_BYTES, bytes_of
from tests.builders import trigger

LONG = "\u4e2d" * 1000  # 3,000 bytes


def test_pieces_of_a_backlog_are_measured_in_bytes() -> None:
    entries = [trigger(n, key=LONG) for n in range(600)]
    pieces = list(_pieces(entries))
    assert [each for piece in pieces for each in piece] == entries
    assert all(sum(bytes_of(t.fairness_key) for t in piece) <= MOST_BYTES for piece in pieces)


def test_batches_of_a_schedule_have_a_limited_number_of_bytes() -> None:
    writes = [Write(1, [("persist", (LONG,))], bytes_of(LONG, None, 7)) for _ in range(600)]
    batches = batches_of(writes)
    assert sum(map(len, batches)) == 600
    assert all(sum(bytes_of(*row) for _, row in batch) <= MOST_BYTES for batch in batches)


def test_statements_that_belong_together_are_in_one_batch_of_a_schedule() -> None:
    writes = [
        Write(hour, [("complete", (n, LONG)), ("mark_done", (n, LONG))], bytes_of(LONG, LONG))
        for n in range(300)
        for hour in (1, 2)
    ]
    batches = batches_of(writes)
    assert len(batches) > 4
    for batch in batches:
        assert [row[0] for name, row in batch if name == "complete"] == [
            row[0] for name, row in batch if name == "mark_done"
        ]
