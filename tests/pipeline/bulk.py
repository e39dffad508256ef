"""Helpers for the tests of bulk submit: an App, a submission in one call, and the tables read back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from fairlead import App
from fairlead.pipeline.bulk.options import BulkOptions
from fairlead.pipeline.bulk.rows import RowEncoder
from fairlead.pipeline.bulk.stage import StagedPart, SubmissionTotals, opened

APP = "tests.pipeline.bulk:app"
OPTIONS = {"app": APP, "task": "keep", "submission_id": "march"}

app = App("sqlite:///not-used.db")
app.queue("ordered", kind="ordered")


@app.task(name="pay", queue="orders", keep_result=True)
def pay(
    account: str,
    n: int,
    amount: Decimal | None = None,
    when: datetime | None = None,
    flags: list[bool] | None = None,
    priority: str | None = None,
) -> None: ...


@app.task(name="keep", queue="orders")
def keep(
    n: Any = None,
    text: Any = None,
    ratio: Any = None,
    flags: Any = None,
    partner: Any = None,
    day: date | None = None,
) -> None: ...


@app.task(name="in_order", queue="ordered")
def in_order(n: int) -> None: ...


def options_of(url: str, **options: Any) -> BulkOptions:
    """Return the options of the submission `march`, or of the one that is given."""
    given = OPTIONS | {"url": url} | options
    return BulkOptions.read({name: value for name, value in given.items() if value is not None})


def numbers(first: int, last: int, **columns: Any) -> pa.RecordBatch:
    """Return rows with one task for each number."""
    return pa.record_batch({"n": pa.array(range(first, last)), **columns})


def stage(url: str, part: Sequence[pa.RecordBatch], number: int, **options: Any) -> StagedPart:
    """Stage one part, as a task of Spark does."""
    encoder = RowEncoder(options_of(url, **options), number)
    with opened(url) as store:
        return store.stage(number, encoder.pieces(iter(part)))


def publish(url: str, parts: Sequence[StagedPart], id: str = "march") -> SubmissionTotals:
    """Publish the parts, as the driver does."""
    with opened(url) as store:
        return store.publish(id, parts)


def submit(
    url: str, parts: Sequence[Sequence[pa.RecordBatch]], id: str = "march", **options: Any
) -> SubmissionTotals:
    """Stage and publish all parts; return the totals."""
    staged = [stage(url, part, number, **options) for number, part in enumerate(parts)]
    return publish(url, staged, id)


def rows(url: str, sql: str) -> list[dict[str, Any]]:
    """Return the rows of a SELECT, by column name."""
    app = App(url)
    with app.store.database.transaction() as connection:
        cursor = connection.execute(sql)
        names = [column[0] for column in cursor.description]
        found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    app.close()
    return found


def numbers_in(url: str) -> list[int]:
    """Return the arguments of all SUBMITTED tasks, in the order of their lanes."""
    found = rows(url, "SELECT payload FROM fairlead_tasks ORDER BY ready_seq")
    return [
        int(bytes(row["payload"]).decode().removeprefix('{"n":').removesuffix("}")) for row in found
    ]


def left_in_stage(url: str) -> int:
    """Return the number of staged pieces."""
    return int(rows(url, "SELECT count(*) AS staged FROM fairlead_bulk_stage")[0]["staged"])
