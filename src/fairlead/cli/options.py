"""Options that most commands share: where tasks live, and how the result is printed."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.parameters import CommandOptions

Url = Annotated[
    str | None, typer.Option(help="Where tasks live; else FAIRLEAD_URL or the configuration file.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document.")]


class StoreOptions(CommandOptions, frozen=True, kw_only=True):
    """The store that a command works on."""

    url: Url = None


class LookOptions(StoreOptions, frozen=True, kw_only=True):
    """The store that a command works on, and how to print what it found or did."""

    json: Json = False
