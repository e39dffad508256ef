"""Options of a bulk submit, read from strings, and the handler that they name."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, Literal, cast
from urllib.parse import quote

import msgspec

from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.cli.application import load
from fairlead.connect import task_store
from fairlead.core import values as bounds
from fairlead.declare.arguments import Arguments
from fairlead.declare.handler import Handler
from fairlead.errors import ConfigurationError, InvalidTask
from fairlead.urls import split_url


class BulkOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of one bulk submit."""

    app: str
    """MODULE:APP that declares the task; every process of Spark imports it. Its handler gives the
    queue, and checks the arguments by its annotations."""
    task: str
    """Name of every task."""
    submission_id: str
    """Id that a repeated submission shares with the first one."""
    url: str | None = None
    """URL of the task store; default: that of the App."""
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
        except (msgspec.ValidationError, InvalidTask) as error:
            known = ", ".join(cls.__struct_fields__)
            raise ConfigurationError(f"bulk submit: {error}; options: {known}") from error
        url = read.url or load(read.app).url
        return msgspec.structs.replace(read, url=_absolute_url(url))

    def handler(self) -> Handler:
        """Return the handler of the tasks. Raise ConfigurationError if the App does not declare it,
        or declares it in an ordered queue."""
        app = load(self.app)
        handlers = app.handlers
        if (handler := handlers.get(self.task)) is None:
            known = ", ".join(sorted(handlers))
            raise ConfigurationError(f"no task named {self.task!r} in {self.app}; it has {known}")
        if handler.queue in app.operate_context.ordered_queues:
            raise ConfigurationError(
                f"task {self.task!r} is of the ordered queue {handler.queue!r}, which takes no bulk"
                " submit; use submit_many"
            )
        if self.values == "text":
            handler = copy(handler)
            handler.arguments = cast(Arguments, _TextArguments(handler.arguments))
        return handler


class _TextArguments:
    """Encoder of arguments that are texts, such as `7` for a whole number."""

    def __init__(self, arguments: Arguments) -> None:
        self._arguments = arguments
        self.names = arguments.names

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
