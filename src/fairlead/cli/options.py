"""Options of most commands: where tasks are stored, and how to print the result."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from fairlead.app import App
from fairlead.cli.application import load
from fairlead.cli.parameters import CommandOptions
from fairlead.cli.stores import app_on
from fairlead.errors import InvalidTask

Url = Annotated[
    str | None,
    typer.Option(help="Store; default: FAIRLEAD_URL or the configuration file."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Actor = Annotated[
    str | None,
    typer.Option(help="Name of the person in the audit log; default: the login name."),
]


class StoreOptions(CommandOptions, frozen=True, kw_only=True):
    """The store of a command."""

    url: Url = None
    app: Annotated[
        str | None,
        typer.Option(
            "--app", metavar="MODULE:APP", help="Your application, in place of its store alone."
        ),
    ] = None

    @contextmanager
    def opened(self, may_be_new: bool = False) -> Iterator[App]:
        """Return the application on this store, and close it at the end. Raise ConfigurationError,
        also for a SQLite file that does not exist, unless it `may_be_new`."""
        if self.url is not None and self.app is not None:
            raise InvalidTask("give --url, or --app, whose code names the store")
        app = app_on(self.url, may_be_new) if self.app is None else load(self.app)
        try:
            yield app
        finally:
            app.close()


class OutputOptions(StoreOptions, frozen=True, kw_only=True):
    """The store of a command, and how to print its result."""

    json: Json = False


class PersonOptions(OutputOptions, frozen=True, kw_only=True):
    """The store of a command, how to print its result, and the person who acts."""

    actor: Actor = None


def actor_of(given: str | None) -> str:
    """Return the person who acts: the option, else the name of the user, else `nobody`, if the user
    has no name, as in some containers."""
    if given is not None:
        return given
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "nobody"
