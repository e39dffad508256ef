"""Options of most commands: where tasks are stored, and how to print the result."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.parameters import CommandOptions

Url = Annotated[
    str | None,
    typer.Option(help="Store; default: FAIRLEAD_URL or the configuration file."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


class StoreOptions(CommandOptions, frozen=True, kw_only=True):
    """The store of a command."""

    url: Url = None


class OutputOptions(StoreOptions, frozen=True, kw_only=True):
    """The store of a command, and how to print its result."""

    json: Json = False
