"""Options of a bulk submit: read all of them from strings, and report all problems at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import quote

from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.config import PAYLOAD_LIMIT
from fairlead.connect import task_store
from fairlead.core import values as bounds
from fairlead.core.values import MOST_COUNT
from fairlead.declare.options import Options
from fairlead.declare.queue import DEFAULT_PARTITIONS, MOST_PARTITIONS, Queue
from fairlead.errors import ConfigurationError, InvalidTask
from fairlead.pipeline.bulk.declared_types import read_types
from fairlead.urls import split_url

_CHOICES = {
    "on_conflict": ("ignore", "error"),
    "on_error": ("fail", "quarantine"),
    "publish": ("atomic", "chunked"),
    "on_repeat": ("compare", "skip"),
    "keep_result": ("true", "false"),
}
_BOUNDS = {
    "partitions": (1, MOST_PARTITIONS),
    "max_connections": (1, MOST_COUNT),
    "max_backlog": (1, MOST_COUNT),
    "rows_per_chunk": (1, MOST_COUNT),
    "payload_limit": (2, MOST_COUNT),
}
_OPTIONS_OF_SPARK = frozenset({"path", "checkpointlocation"})


@dataclass(frozen=True)
class BulkOptions:
    """Options of one bulk submit; all but `url` are optional."""

    url: str = field(repr=False)
    queue: str | None = None
    """Queue of every task; a column `queue` overrides it."""
    task: str | None = None
    """Name of every task; a column `name` overrides it."""
    submission_id: str | None = None
    """Id that a repeated job shares with the first one. Without an id, every row needs a unique
    key."""
    args_columns: tuple[str, ...] = ()
    """Names of the columns that hold the arguments of the task; a column is an argument of the same
    name."""
    on_conflict: str = "ignore"
    """Reaction to a unique key that is in use: skip the row ("ignore") or fail the job
    ("error")."""
    on_error: str = "fail"
    """Reaction to a row with a value out of bounds: fail the job ("fail"), or store the row in
    fairlead_bulk_rejects ("quarantine")."""
    on_repeat: str = "compare"
    """Reaction to a submission id that is already published: read the rows and fail if they differ
    from the published ones ("compare"), or read nothing ("skip")."""
    content: str | None = None
    """Digest of the content, if the submitter knows one, such as that of a file. A repeat with the
    same digest reads no rows; one with another digest fails at once."""
    types: tuple[tuple[str, str], ...] = ()
    """Types of columns of text, as (column, type); `declared_types.TYPES` lists the types. Other
    columns keep the types of the DataFrame."""
    publish: str = "atomic"
    """Way of publishing. "atomic": all rows in one transaction; "chunked": each row exactly once,
    in several transactions, so that a failed job may have published some chunks."""
    partitions: int | None = None
    """Number of partitions to register for a queue that is unknown or has fewer; default for an
    unknown queue: DEFAULT_PARTITIONS."""
    max_connections: int = 4
    """Maximum number of processes that write to the stage of one PostgreSQL database at once."""
    max_backlog: int | None = None
    """Number of runnable, unclaimed tasks in the queues at which a "chunked" job waits before its
    next chunk; None for no limit."""
    rows_per_chunk: int = 50_000
    """Rows in one transaction of a "chunked" job."""
    payload_limit: int = PAYLOAD_LIMIT
    """Maximum size of the JSON arguments of a task, in bytes."""
    keep_result: bool = False
    """Whether the store keeps the results of the tasks."""

    @classmethod
    def read(cls, options: Mapping[str, str]) -> BulkOptions:
        """Read options whose names may be in upper or lower case, as Spark passes them. Raise one
        ConfigurationError that lists all problems."""
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {key.lower(): value for key, value in options.items()}
        values = {key: values[key] for key in values.keys() - _OPTIONS_OF_SPARK}
        wrong = [
            f"unknown option {key}; known: {', '.join(sorted(known))}"
            for key in values.keys() - known
        ]
        for key in sorted(values.keys() & _BOUNDS.keys()):
            try:
                values[key] = bounds.whole(key, int(values[key]), *_BOUNDS[key])
            except ValueError:
                wrong.append(f"{key} {values.pop(key)!r}: use a whole number")
            except ConfigurationError as error:
                values.pop(key)
                wrong.append(str(error))
        for key, choices in _CHOICES.items():
            if key in values and values[key] not in choices:
                wrong.append(f"{key} {values.pop(key)!r}: use {' or '.join(choices)}")
        if "keep_result" in values:
            values["keep_result"] = values["keep_result"] == "true"
        if "args_columns" in values:
            values["args_columns"] = listed(values["args_columns"])
        if "types" in values:
            values["types"], problems = read_types(values["types"])
            wrong += problems
        read = cls(**{"url": "", **{key: values[key] for key in values.keys() & known}})
        if not read.url:
            wrong.append("option url is missing; give the URL of the task store")
        named = {"queue": read.queue, "name": read.task, "submission_id": read.submission_id}
        for name, value in named.items():
            if value is not None and (reason := reason_against(name, value)) is not None:
                wrong.append(reason)
        if read.on_conflict == "error" and read.publish == "chunked":
            wrong.append(
                "on_conflict error needs publish atomic, because published chunks cannot be rolled"
                " back"
            )
        if read.max_backlog is not None and read.publish == "atomic":
            wrong.append("max_backlog needs publish chunked")
        args = read.args_columns
        wrong += [
            f"args_columns names {name} twice" for name in sorted(set(args)) if args.count(name) > 1
        ]
        if wrong:
            raise ConfigurationError(f"bulk submit: {'; '.join(wrong)}")
        return replace(read, url=_absolute_url(read.url))

    def with_submission_id(self, submission_id: str) -> BulkOptions:
        """Return a copy of the options with this submission id."""
        return replace(self, submission_id=submission_id)

    def partitions_of(self, registered: Mapping[str, int], queue: str) -> int:
        """Return the number of partitions of a queue, which is the greater of the registered and
        the requested number."""
        return max(registered.get(queue, 0), self.partitions or 0) or DEFAULT_PARTITIONS


def listed(text: str) -> tuple[str, ...]:
    """Return the names in `a, b`."""
    return tuple(filter(None, map(str.strip, text.split(","))))


def reason_against(column: str, value: Any) -> str | None:
    """Return why a submit would refuse the value of a known column or the submission id, in the
    words of its error; None if it would not."""
    try:
        if column == "queue":
            Queue(value)
        elif column == "name":
            bounds.name("task name", value)
        elif column == "submission_id":
            bounds.text(column, value)
        else:
            Options().changed({column: value})
    except (InvalidTask, ConfigurationError) as error:
        return str(error)
    return None


def _absolute_url(url: str) -> str:
    """Return the URL with an absolute path, so that every process opens the same store. Raise
    ConfigurationError for an unknown kind of URL."""
    database = task_store(url).database
    if not isinstance(database, SqliteDatabase):
        return url
    query = split_url(url).query
    return f"sqlite:///{quote(str(database.path.resolve()))}{'?' if query else ''}{query}"
