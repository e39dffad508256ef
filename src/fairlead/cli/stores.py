"""The store of a command: the one that its URL names, or the file in this folder."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable
from contextlib import closing
from glob import glob
from pathlib import Path
from typing import TypeVar

from fairlead.app import App
from fairlead.cli.output import say_error
from fairlead.config import url_of
from fairlead.errors import ConfigurationError
from fairlead.urls import file_of

T = TypeVar("T")

_ENDINGS = (".db", ".sqlite", ".sqlite3")
_FIRST_BYTES = b"SQLite format 3\0"


def app_on(url: str | None, may_be_new: bool = False) -> App:
    """Return an application without tasks on the store of a command. Without a URL on the command
    line, in the environment or in a file, use the only SQLite file with tasks in this folder, and
    say so on stderr. Raise ConfigurationError if several have tasks, or if a named file does not
    exist, unless it `may_be_new`."""
    if (named_url := url_of(url)) is not None:
        if not may_be_new:
            check_file(named_url)
        return App(url)
    named = (name for ending in _ENDINGS for name in glob(f"*{ending}"))
    found = [name for name in sorted(named) if _has_tasks(name)]
    if len(found) > 1:
        raise ConfigurationError(
            f"several files here have tasks: {', '.join(found)}; choose one:"
            f" --url sqlite:///{found[0]}"
        )
    if not found:
        return App()  # its first use says what is missing
    say_error(f"using --url sqlite:///{found[0]}, the file with tasks in this folder")
    return App(f"sqlite:///{found[0]}")


def check_file(url: str) -> None:
    """Raise ConfigurationError for the URL of a SQLite file that does not exist."""
    file = file_of(url)
    if file is not None and not file.exists():
        raise ConfigurationError(
            f"no file {file}: check the URL; `fairlead migrate` makes a new one"
        )


def wait_and_close(app: App, reading: Awaitable[T]) -> T:
    """Return the result of an asynchronous call, and close the connections that it opened."""

    async def run() -> T:
        try:
            return await reading
        finally:
            await app.connections.close_async()

    return asyncio.run(run())


def _has_tasks(name: str) -> bool:
    """Return whether a file is a SQLite database with Fairlead's tables. Files that cannot be read
    have none."""
    try:
        with open(name, "rb") as file:
            if file.read(len(_FIRST_BYTES)) != _FIRST_BYTES:
                return False
        uri = f"{Path(name).resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            query = "SELECT count(*) FROM sqlite_master WHERE name = 'fairlead_tasks'"
            return bool(connection.execute(query).fetchone()[0])
    except (OSError, sqlite3.Error):
        return False
