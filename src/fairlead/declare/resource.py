"""Resources: objects that handlers need and workers make, such as clients and sessions."""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from functools import cache
from typing import Any, NoReturn

from fairlead.core import values
from fairlead.errors import ConfigurationError

Factory = Callable[..., Any]
"""Function that makes a resource: sync or async, returning the resource or a context manager, or a
generator that yields the resource once."""


class Scope(StrEnum):
    """Lifetime of a resource."""

    PROCESS = "process"  # made once in each worker process, closed when the worker stops
    RUN = "run"  # made for each run, closed when the run ends


class Resource:
    """Marks a parameter of a handler that the worker supplies: `client: Annotated[Client,
    Resource(make_client)] = INJECTED`. The parameter belongs neither to the arguments of a submit
    nor to the payload.

    `make`: a sync or async function that returns the resource, a function with one `yield`, or one
    that returns a context manager; its own parameters may be marked as resources too. `scope`:
    "process" makes the resource once in each worker process, when a run first needs it, and closes
    it when the worker stops; "run" makes and closes it in each run. Resources close in the reverse
    order of their making. Raises ConfigurationError for other values.
    """

    def __init__(self, make: Factory, *, scope: str = "process") -> None:
        if not callable(make):
            raise ConfigurationError(
                f"resource {values.brief(make)}: use a function that makes the resource"
            )
        try:
            hash(make)
        except TypeError:
            raise ConfigurationError(
                f"resource {values.brief(make)}: use a function, or a callable object with a hash"
            ) from None
        self.make = make
        try:
            self.scope = Scope(scope)
        except ValueError:
            raise ConfigurationError(
                f"resource {name_of(make)!r}: scope {values.brief(scope)}: use 'process', for one"
                " in each worker process, or 'run', for one in each run"
            ) from None

    def __repr__(self) -> str:
        return f"Resource({name_of(self.make)}, scope={str(self.scope)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Resource):
            return NotImplemented
        return (self.make, self.scope) == (other.make, other.scope)

    def __hash__(self) -> int:
        return hash((self.make, self.scope))


class _Injected:
    """The default of a resource parameter, which stands for nothing outside a worker."""

    def __repr__(self) -> str:
        return "fairlead.INJECTED"

    def __bool__(self) -> NoReturn:
        self._refuse()

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise ConfigurationError."""
        self._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigurationError(
            "this resource was not supplied: a worker supplies it; in a direct call of the"
            " function, give it as an argument"
        )


INJECTED: Any = _Injected()
"""Default of a resource parameter, so that type checkers let a submit leave it out."""


def name_of(make: Factory) -> str:
    """Return the name of a factory, for errors and logs."""
    return str(getattr(make, "__qualname__", None) or values.brief(make))


def resources_of(function: Callable[..., Any]) -> dict[str, Resource]:
    """Return the parameters of a handler that are marked as resources, by name. Raises
    ConfigurationError for a mark that cannot be used."""
    found = _marked(function)
    for resource in found.values():
        _check(resource, ())
    return found


@cache
def needs_of(make: Factory) -> Mapping[str, Resource]:
    """Return the parameters of a factory that are marked as resources, by name. Raises
    ConfigurationError for a parameter that is neither marked nor has a default."""
    needs = _marked(make)
    for parameter in _parameters(make):
        if (
            parameter.name not in needs
            and parameter.default is inspect.Parameter.empty
            and parameter.kind
            not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        ):
            raise ConfigurationError(
                f"resource {name_of(make)!r}: its parameter {parameter.name!r} has no value: mark"
                " it as a Resource, or give it a default"
            )
    return needs


def _check(resource: Resource, path: tuple[Factory, ...]) -> None:
    """Raise ConfigurationError if the resource needs itself, or a shorter-lived one."""
    if resource.make in path:
        circle = " -> ".join(map(name_of, (*path[path.index(resource.make) :], resource.make)))
        raise ConfigurationError(f"resources need each other in a circle: {circle}")
    for need in needs_of(resource.make).values():
        if resource.scope is Scope.PROCESS and need.scope is Scope.RUN:
            raise ConfigurationError(
                f"resource {name_of(resource.make)!r} lives as long as the process and needs"
                f" {name_of(need.make)!r}, which lives for one run: give both the same scope"
            )
        _check(need, (*path, resource.make))


def _marked(function: Callable[..., Any]) -> dict[str, Resource]:
    target = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    try:
        hints = typing.get_type_hints(target, include_extras=True)
    except (TypeError, NameError, AttributeError):
        return {}  # a handler's own check of its arguments reports the hint
    found: dict[str, Resource] = {}
    for parameter in _parameters(function):
        marks = [
            mark
            for mark in getattr(hints.get(parameter.name), "__metadata__", ())
            if isinstance(mark, Resource) or mark is Resource
        ]
        if not marks:
            continue
        where = f"parameter {parameter.name!r} of {name_of(function)!r}"
        mark = marks[0]
        if len(marks) > 1 or not isinstance(mark, Resource):
            raise ConfigurationError(
                f"{where}: mark it with one Resource(make), as in"
                " Annotated[Client, Resource(make_client)]"
            )
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise ConfigurationError(f"{where}: resources are passed by name; remove the `/`")
        found[parameter.name] = mark
    return found


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # some functions in C have none
        return []


def makes_of(resources: Iterable[Resource]) -> Iterator[Factory]:
    """Yield the factories of the resources and of all that these need."""
    for resource in resources:
        yield resource.make
        yield from makes_of(needs_of(resource.make).values())


class Overrides(dict[Factory, Factory]):
    """Factories that replace others in tests, by the replaced factory."""

    @contextmanager
    def replacing(self, make: Factory, fake: Factory) -> Iterator[None]:
        """Replace a factory during the block. Raise ConfigurationError for other objects than
        functions."""
        if not callable(fake):
            raise ConfigurationError(
                f"override of {name_of(make)!r} by {values.brief(fake)}: use a function that"
                " returns the object, such as lambda: fake"
            )
        _check(Resource(fake), ())
        before = self.get(make)
        self[make] = fake
        try:
            yield
        finally:
            if before is None:
                del self[make]
            else:
                self[make] = before


def as_manager(made: Any) -> Any:
    """Return the context manager, sync or async, that keeps a made resource open; None if the
    object is the resource itself."""
    if inspect.isgenerator(made):
        return contextlib.contextmanager(lambda: made)()
    if inspect.isasyncgen(made):
        return contextlib.asynccontextmanager(lambda: made)()
    return made if _has(made, "__aenter__") or _has(made, "__enter__") else None


def is_async_manager(manager: Any) -> bool:
    """Return whether a context manager is entered by `async with`."""
    return _has(manager, "__aenter__")


def _has(made: Any, method: str) -> bool:
    # Read from the class without its descriptors: a MagicMock would seem to be a context manager.
    return callable(inspect.getattr_static(type(made), method, None))
