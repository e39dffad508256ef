"""Options of most commands: where tasks are stored, and how to print the result."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from fairlead.cli.parameters import CommandOptions

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


class OutputOptions(StoreOptions, frozen=True, kw_only=True):
    """The store of a command, and how to print its result."""

    json: Json = False


class PersonOptions(OutputOptions, frozen=True, kw_only=True):
    """The store of a command, how to print its result, and the person who acts."""

    actor: Actor = None


class ActorOptions(StoreOptions, frozen=True, kw_only=True):
    """The store of a command, and the person who acts."""

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
