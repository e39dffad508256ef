"""Groups that import the module of a command when it is used, so that every command starts fast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint
from typing import Any

import typer
from typer.core import TyperGroup

from fairlead.urls import hide_urls

_USAGE_ERROR: Any = typer.BadParameter.__base__
"""Base of Typer's errors about arguments, which some versions of Typer take from click."""


def entry_points_of(commands: Mapping[str, str]) -> list[EntryPoint]:
    """Return an entry point for each command: its name, and its location as `module:attribute`."""
    return [EntryPoint(name, location, "fairlead.commands") for name, location in commands.items()]


def lazy_group(commands: Iterable[EntryPoint]) -> type[TyperGroup]:
    """Return the class of a group with these commands, in their order; give it to `typer.Typer`.

    Each entry point refers to a function, which becomes a command, or to a `typer.Typer`, which
    becomes a group. A module that is missing raises ImportError when its command is used.
    """
    found = _Commands(commands)

    class LazyGroup(TyperGroup):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given | {"commands": found})

        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except _USAGE_ERROR as error:
                error.message = hide_urls(error.message)
                raise

    return LazyGroup


class _Commands(Mapping[str, Any]):
    """Commands by name, each made at its first use."""

    def __init__(self, points: Iterable[EntryPoint]) -> None:
        self._points = {point.name: point for point in points}
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _made(self._points[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._points)

    def __len__(self) -> int:
        return len(self._points)


def _made(point: EntryPoint) -> Any:
    target = point.load()
    if isinstance(target, typer.Typer):
        group = typer.main.get_group(target)
        group.name = point.name
        return group
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    single.command(name=point.name)(target)
    return typer.main.get_command(single)
