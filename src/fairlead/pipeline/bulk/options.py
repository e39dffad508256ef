"""Options of a bulk submit, read from strings and checked together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import quote, urlsplit

from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.config import PAYLOAD_LIMIT
from fairlead.connect import task_store
from fairlead.declare.options import MOST_KEY_BYTES
from fairlead.declare.queue import DEFAULT_PARTITIONS, MOST_PARTITIONS
from fairlead.errors import ConfigurationError
from fairlead.pipeline.bulk.bounds import reason_against

_CHOICES = {
    "on_conflict": ("ignore", "error"),
    "on_error": ("fail", "quarantine"),
    "publish": ("atomic", "chunked"),
    "keep_result": ("true", "false"),
}
_LEAST = {
    "partitions": 1,
    "max_connections": 1,
    "max_backlog": 1,
    "rows_per_chunk": 1,
    "payload_limit": 2,
}
_SPARKS_OWN = frozenset({"path", "checkpointlocation"})


@dataclass(frozen=True)
class BulkOptions:
    """Options of one bulk submit; all but `url` are optional."""

    url: str
    queue: str | None = None
    """Queue of every task; a column `queue` overrides it."""
    task: str | None = None
    """Name of every task; a column `name` overrides it."""
    submission_id: str | None = None
    """Id of the job across repeats. Without it every row needs a unique key."""
    args_columns: tuple[str, ...] = ()
    """Columns with the arguments of the task, by name."""
    on_conflict: str = "ignore"
    """For a taken unique key: leave the row out ("ignore"), or fail the job ("error")."""
    on_error: str = "fail"
    """For a row out of bounds: fail the job ("fail"), or store the row in fairlead_bulk_rejects
    ("quarantine")."""
    publish: str = "atomic"
    """"atomic": one transaction, all or nothing; "chunked": several, each row exactly once, but not
    all or nothing."""
    partitions: int | None = None
    """Partitions of a queue that is unknown or has fewer; default: DEFAULT_PARTITIONS."""
    max_connections: int = 4
    """Most processes that stage at once in one PostgreSQL database."""
    max_backlog: int | None = None
    """With "chunked": wait before a chunk while the queues have this many runnable, unclaimed
    tasks."""
    rows_per_chunk: int = 50_000
    payload_limit: int = PAYLOAD_LIMIT
    """Most bytes of the JSON arguments."""
    keep_result: bool = False
    """Options of the declared task."""

    @classmethod
    def read(cls, options: Mapping[str, str]) -> BulkOptions:
        """Read options with names in any case, as Spark passes them on. Raise ConfigurationError
        with all problems."""
        known = {field.name for field in fields(cls)}
        given = {
            key.lower(): value for key, value in options.items() if key.lower() not in _SPARKS_OWN
        }
        wrong = [
            f"unknown option {key}; known: {', '.join(sorted(known))}"
            for key in given.keys() - known
        ]
        values: dict[str, Any] = {key: given[key] for key in given.keys() & known}
        for key in sorted(values.keys() & _LEAST.keys()):
            try:
                values[key] = int(values[key])
            except ValueError:
                wrong.append(f"{key} {values[key]!r}: use a whole number")
                del values[key]
        for key, choices in _CHOICES.items():
            if key in values and values[key] not in choices:
                wrong.append(f"{key} {values[key]!r}: use {' or '.join(choices)}")
                del values[key]
        if "keep_result" in values:
            values["keep_result"] = values["keep_result"] == "true"
        if "args_columns" in values:
            values["args_columns"] = tuple(
                name.strip() for name in values["args_columns"].split(",") if name.strip()
            )
        read = cls(**{"url": "", **values})
        wrong += read._wrong()
        if wrong:
            raise ConfigurationError(f"bulk submit: {'; '.join(wrong)}")
        return replace(read, url=_everywhere(read.url))

    def named(self, submission_id: str) -> BulkOptions:
        """Return the options under another submission id."""
        return replace(self, submission_id=submission_id)

    def _wrong(self) -> list[str]:
        wrong = [] if self.url else ["option url missing: say where tasks live"]
        if (
            self.submission_id is not None
            and not 1 <= len(self.submission_id.encode()) <= MOST_KEY_BYTES
        ):
            wrong.append(f"submission_id: use 1 to {MOST_KEY_BYTES} bytes of text")
        if self.submission_id is not None and "\x00" in self.submission_id:
            wrong.append("submission_id: must not hold a NUL character")
        for name, value in (("queue", self.queue), ("name", self.task)):
            if value is not None and (reason := reason_against(name, value)) is not None:
                wrong.append(reason)
        if self.on_conflict == "error" and self.publish == "chunked":
            wrong.append(
                "on_conflict error needs publish atomic: chunks that are in cannot be taken back"
            )
        if self.max_backlog is not None and self.publish == "atomic":
            wrong.append("max_backlog needs publish chunked")
        for name, least in _LEAST.items():
            if (value := getattr(self, name)) is not None and value < least:
                wrong.append(f"{name} {value}: use {least} or more")
        if (self.partitions or 1) > MOST_PARTITIONS:
            wrong.append(f"partitions {self.partitions}: use {MOST_PARTITIONS} or fewer")
        return wrong

    def partitions_of(self, registered: Mapping[str, int], queue: str) -> int:
        """Return the number of partitions of a queue: the greatest number registered or
        requested."""
        least = self.partitions if self.partitions is not None else 0
        return max(registered.get(queue, 0), least) or DEFAULT_PARTITIONS


def _everywhere(url: str) -> str:
    """Return a URL that means the same in every process and folder. Raise ConfigurationError for an
    unknown kind of URL."""
    database = task_store(url).database
    if not isinstance(database, SqliteDatabase):
        return url
    query = urlsplit(url).query
    return f"sqlite:///{quote(str(database.path.resolve()))}{'?' if query else ''}{query}"
