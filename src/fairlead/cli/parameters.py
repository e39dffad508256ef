"""Option Structs as parameters of a command: each field becomes an option or argument of Typer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import NODEFAULT
from typer.models import ArgumentInfo, OptionInfo

from fairlead.cli.output import one_line_errors

R = TypeVar("R")
_EMPTY = inspect.Parameter.empty


class CommandOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the Structs that `with_options` expands.

    A field is `name: Annotated[type, typer.Option(...)] = default`, without a default if it is
    required, or another CommandOptions whose fields take its place. Subclasses are `frozen` and
    `kw_only`. `--help` shows their fields in the order of the source, inherited ones first.
    """


class _Parameter(NamedTuple):
    expanded: inspect.Parameter  # for Typer
    owner: str  # the Struct or the function that declares it


def with_options(command: Callable[..., R]) -> Callable[..., R]:
    """Expand each CommandOptions parameter of `command` into parameters for Typer; keep the others.
    Errors of the command become one line each. Raise TypeError when two have the same name."""
    annotations = get_type_hints(command, include_extras=True)
    parameters = [
        parameter
        for written in inspect.signature(command).parameters.values()
        for parameter in _flat(
            written.replace(annotation=annotations[written.name]), command.__name__
        )
    ]
    _refuse_clashes(command.__name__, parameters)
    taken = {name: annotation for name, annotation in annotations.items() if name != "return"}

    @functools.wraps(command)
    def run(**given: Any) -> R:
        with one_line_errors():
            return command(**{name: _built(name, taken[name], given) for name in taken})

    expanded = [parameter.expanded for parameter in parameters]
    run.__signature__ = inspect.Signature(expanded)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in expanded}
    return run


def _is_options(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, CommandOptions)


def _flat(parameter: inspect.Parameter, owner: str) -> Iterator[_Parameter]:
    """Yield the parameter or, for a Struct, its fields in the order of the source."""
    if not _is_options(parameter.annotation):
        # Keyword-only, because a required parameter may follow one with a default.
        yield _Parameter(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY), owner)
        return
    for field in msgspec.structs.fields(parameter.annotation):
        default = _EMPTY if field.default is NODEFAULT else field.default
        if field.default_factory is not NODEFAULT:
            default = field.default_factory()
        flat = parameter.replace(name=field.name, annotation=field.type, default=default)
        yield from _flat(flat, parameter.annotation.__name__)


def _built(name: str, annotation: Any, given: dict[str, Any]) -> Any:
    """Return the value of a parameter: as Typer gives it, or its Struct built again."""
    if not _is_options(annotation):
        return given[name]
    fields = msgspec.structs.fields(annotation)
    return annotation(**{field.name: _built(field.name, field.type, given) for field in fields})


def _refuse_clashes(command: str, parameters: list[_Parameter]) -> None:
    owners: dict[str, str] = {}
    for parameter, owner in parameters:
        for name in (parameter.name, *_flags(parameter)):
            if name in owners:
                raise TypeError(
                    f"command {command}: {name} is in {owners[name]} and in {owner}; rename one"
                )
            owners[name] = owner


def _flags(parameter: inspect.Parameter) -> list[str]:
    """Return the names of an option on the command line, such as `--dry-run`; none for an
    argument."""
    for info in get_args(parameter.annotation):
        if isinstance(info, ArgumentInfo):
            return []
        if isinstance(info, OptionInfo):
            # Within Annotated, Typer stores the first flag as the default.
            declared = (info.default, *(info.param_decls or ()))
            flags = [each for each in declared if isinstance(each, str)]
            if flags:
                return [name for each in flags for name in each.split("/")]
    return ["--" + parameter.name.replace("_", "-")]
