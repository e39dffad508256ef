"""Options of a bulk submit, read from strings, and the handler that they name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import quote

import msgspec

from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.cli.application import load
from fairlead.config import PAYLOAD_LIMIT
from fairlead.connect import task_store
from fairlead.core import values as bounds
from fairlead.declare.arguments import Arguments
from fairlead.declare.queue import Queue
from fairlead.errors import ConfigurationError, InvalidTask
from fairlead.urls import split_url


class BulkOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of one bulk submit. Give `app`, or `url` and perhaps `queue`."""

    task: str
    """Name of every task."""
    submission_id: str
    """Id that a repeated submission shares with the first one."""
    app: str | None = None
    """MODULE:APP that declares the task; every process of Spark imports it. Its handler gives the
    queue, and checks the arguments by its annotations. Without an App the arguments are any
    JSON values."""
    url: str | None = None
    """URL of the task store; default: that of the App."""
    queue: str | None = None
    """Queue of the tasks, without an App; default: `default`."""
    keep_result: bool = False
    """Whether the store keeps the results of the tasks, without an App."""
    content: str | None = None
    """Digest of the rows, if the submitter knows one, such as that of a file. A repeat with another
    digest is an error."""
    values: Literal["typed", "text", "json"] = "typed"
    """Form of the rows. "typed": the columns have the types of the arguments; "text": columns of
    text, which the annotations of the App convert; "json": a column `value` with a JSON object in
    each row."""

    def __repr__(self) -> str:
        return f"BulkOptions({self.submission_id!r})"  # the URL may have a password

    @classmethod
    def read(cls, options: Mapping[str, str]) -> BulkOptions:
        """Read options whose names may be in upper or lower case, as Spark passes them. Raise
        ConfigurationError."""
        given: dict[str, Any] = {key.lower(): value for key, value in options.items()}
        given.pop("path", None)  # from Spark
        try:
            read = msgspec.convert(given, cls, strict=False)
            bounds.text("submission_id", read.submission_id)
            bounds.name("task name", read.task)
            if read.app is None:
                Queue(read.queue if read.queue is not None else "default")
        except (msgspec.ValidationError, InvalidTask) as error:
            known = ", ".join(cls.__struct_fields__)
            raise ConfigurationError(f"bulk submit: {error}; options: {known}") from error
        if read.app is not None and (read.queue is not None or read.keep_result):
            raise ConfigurationError(
                "bulk submit: the App declares queue and keep_result; leave these options out"
            )
        url = read.url or (None if read.app is None else load(read.app).url)
        if url is None:
            raise ConfigurationError("bulk submit: give option url, the URL of the task store")
        return msgspec.structs.replace(read, url=_absolute_url(url))

    def handler(self) -> BulkHandler:
        """Return the handler of the tasks. Raise ConfigurationError if the App does not declare it,
        or declares it in an ordered queue."""
        if self.app is None:
            any_json = AnyArguments(self.task)
            return BulkHandler(
                self.task, self.queue or "default", self.keep_result, any_json, None, PAYLOAD_LIMIT
            )
        app = load(self.app)
        if (handler := app.handlers.get(self.task)) is None:
            known = ", ".join(sorted(app.handlers))
            raise ConfigurationError(f"no task named {self.task!r} in {self.app}; it has {known}")
        if handler.is_ordered:
            raise ConfigurationError(
                f"task {self.task!r} is of the ordered queue {handler.queue!r}, which takes no bulk"
                " submit; use submit_many"
            )
        arguments: AnyArguments | Arguments | TextArguments = handler.arguments
        if self.values == "text":
            arguments = TextArguments(handler.arguments)
        names = frozenset(handler.arguments.names)
        given = (self.task, handler.queue, handler.keep_result, arguments, names, app.payload_limit)
        return BulkHandler(*given)


class _Encoder(Protocol):
    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return the arguments as JSON. Raise InvalidTask."""


class BulkHandler(NamedTuple):
    """Parts of a handler that a submit needs."""

    name: str
    queue: str
    keep_result: bool
    arguments: _Encoder
    names: frozenset[str] | None
    """Names of the arguments; None for any."""
    payload_limit: int


class AnyArguments:
    """Encoder of any JSON values as arguments, for a task whose annotations are unknown."""

    def __init__(self, task: str) -> None:
        self._task = task

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return the arguments as JSON. Raise InvalidTask."""
        try:
            return bounds.to_json(kwargs)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidTask(f"task {self._task!r}: {error}") from error


class TextArguments:
    """Encoder of arguments that are texts, such as `7` for a whole number."""

    def __init__(self, arguments: Arguments) -> None:
        self._arguments = arguments

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return the arguments as JSON. Raise InvalidTask."""
        return self._arguments.encode(args, kwargs, strict=False)


def _absolute_url(url: str) -> str:
    """Return the URL with an absolute path, so that every process opens the same store. Raise
    ConfigurationError for an unknown kind of URL."""
    database = task_store(url).database
    if not isinstance(database, SqliteDatabase):
        return url
    query = split_url(url).query
    return f"sqlite:///{quote(str(database.path.resolve()))}{'?' if query else ''}{query}"
