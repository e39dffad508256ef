"""Rows of a DataFrame as checked and encoded tasks: each row is a draft, and drafts are encoded as
those of a single submit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from fairlead.cli.application import load
from fairlead.clock import SYSTEM_CLOCK
from fairlead.core.values import brief
from fairlead.declare.options import Options
from fairlead.declare.task import Draft, encode
from fairlead.errors import ConfigurationError, InvalidTask
from fairlead.model import NewTask
from fairlead.pipeline.bulk.options import BulkOptions
from fairlead.pipeline.errors import RefusedRows

OPTION_COLUMNS = tuple(name for name in Options.__struct_fields__ if name != "connection")
"""Columns that set the options of a task, unless the handler has an argument of that name. All
other columns are arguments."""

MOST_TASKS, MOST_BYTES = 1000, 4 << 20
"""Maximum number of tasks in a piece, and of bytes of payload in a piece of several tasks."""

_MOST_SHOWN = 5
_UNREADABLE = (pa.ArrowException, ValueError, OverflowError, KeyError)
_FROM_TEXT: dict[str, Any] = {
    "priority": int,
    "weight": float,
    "run_at": datetime,
    "unique_for": timedelta,
}
_TIMES = ("run_at", "unique_for")

Row = dict[str, Any]


def check_columns(columns: Sequence[str], options: BulkOptions) -> None:
    """Raise ConfigurationError for columns that no row can fit: repeated ones, and those that are
    neither an argument nor an option."""
    handler = options.handler()
    wrong = [f"{name} is there twice" for name in sorted(set(columns)) if columns.count(name) > 1]
    if options.values == "json":
        columns = [name for name in columns if name != "value"]
    known = dict.fromkeys([*sorted(handler.arguments.names), *OPTION_COLUMNS])
    if unknown := [name for name in columns if name not in known]:
        wrong.append(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    if wrong:
        raise ConfigurationError(f"bulk submit of {handler.name!r}: columns: {'; '.join(wrong)}")


class RowEncoder:
    """Encoder of the rows of one part (partition of the DataFrame)."""

    def __init__(self, options: BulkOptions, part: int) -> None:
        self._options = options
        self._part = part
        self._handler = options.handler()
        self._payload_limit = load(options.app).payload_limit
        self._columns = frozenset(OPTION_COLUMNS).difference(self._handler.arguments.names)
        self.rows = 0

    def pieces(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[NewTask]]:
        """Yield the tasks of the rows in order, in pieces. Their ids and partitions are
        provisional; a task without a `run_at` has that of its submit. Raise RefusedRows with the
        first rows that do not fit."""
        for batch in batches:
            piece: list[NewTask] = []
            size = 0
            for task in self._tasks(batch):
                size += len(task.payload)
                if piece and (len(piece) == MOST_TASKS or size > MOST_BYTES):
                    yield piece
                    piece, size = [], len(task.payload)
                piece.append(task)
            if piece:
                yield piece

    def _tasks(self, batch: pa.RecordBatch) -> list[NewTask]:
        try:
            tasks = self._encoded(batch)
        except (InvalidTask, *_UNREADABLE):
            raise self._refused(batch) from None
        self.rows += batch.num_rows
        return tasks

    def _encoded(self, batch: pa.RecordBatch) -> list[NewTask]:
        rows: list[Row] = batch.to_pylist(maps_as_pydicts="strict")
        if self._options.values == "json":
            rows = [_json_row(row) for row in rows if row["value"].strip()]
        drafts = [self._draft(row) for row in rows]
        partitions = {self._handler.queue: 1}
        return encode(drafts, partitions, SYSTEM_CLOCK.now(), self._payload_limit)

    def _draft(self, row: Row) -> Draft:
        is_text = self._options.values == "text"
        if is_text:
            for name, value in row.items():
                if value is not None and "\ufffd" in value:
                    raise InvalidTask(f"{name} {brief(value)}: has U+FFFD; save the file as UTF-8")
        given = {name: row.pop(name) for name in self._columns & row.keys()}
        options = {
            name: _option(name, value, is_text)
            for name, value in given.items()
            if value is not None
        }
        return Draft(self._handler, (), row, Options().changed(options))

    def _refused(self, batch: pa.RecordBatch) -> RefusedRows:
        """Return the error that names the first wrong rows of the batch."""
        found = []
        for number in range(batch.num_rows):
            try:
                self._encoded(batch.slice(number, 1))
            except (InvalidTask, *_UNREADABLE) as error:
                found.append(f"row {self.rows + number:,}: {error}")
        more = len(found) - _MOST_SHOWN
        return RefusedRows(
            f"bulk submit: nothing was submitted: {len(found):,} bad rows among the first"
            f" {self.rows + batch.num_rows:,} of partition {self._part}:"
            f" {'; '.join(found[:_MOST_SHOWN])}{f'; and {more:,} more' if more > 0 else ''}"
        )


def _json_row(row: Row) -> Row:
    """Return the fields of a JSON object, and the columns that the names of folders give."""
    try:
        return row | msgspec.json.decode(row.pop("value"), type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidTask(f"not a JSON object on one line: {error}") from error


def _option(name: str, value: Any, is_text: bool) -> Any:
    """Return the value of an option as a submit takes it."""
    if isinstance(value, str) and name in _FROM_TEXT and (is_text or name in _TIMES):
        try:
            return msgspec.convert(value, _FROM_TEXT[name], strict=False)
        except msgspec.ValidationError as error:
            raise InvalidTask(f"{name} {brief(value)}: {error}") from error
    return float(value) if isinstance(value, Decimal) else value
