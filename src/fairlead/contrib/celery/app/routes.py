"""Routes: the queue and the options of a submit that neither its call nor its task names."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fairlead.contrib.celery.app.loading import loaded
from fairlead.contrib.celery.exceptions import ImproperlyConfigured


def route_of(
    given: Any, name: str, args: Any = (), kwargs: Any = None, options: Any = None, task: Any = None
) -> dict[str, Any]:
    """Return the options of the first route of `task_routes` that fits a submit; none without one.
    Raise ImproperlyConfigured for a route of another kind."""
    for router in _routers(given):
        if isinstance(router, Mapping):
            found = _by_name(router, name)
        elif hasattr(router, "route_for_task"):
            found = router.route_for_task(name, args, kwargs or {})
        elif callable(router):
            found = router(name, args, kwargs or {}, options or {}, task=task)
        else:
            raise ImproperlyConfigured(
                f"task_routes: {router!r} is no route; use a map of names to queues, or a function"
                " of name, args, kwargs, options, task=None, **kw"
            )
        if found:
            return dict(found) if isinstance(found, Mapping) else {"queue": found}
    return {}


def by_name(given: Any) -> list[Any]:
    """Return the routes by name alone, which need no submit."""
    return [each for each in _routers(given) if isinstance(each, Mapping)]


def queues_in(given: Any) -> Iterator[str]:
    """Yield the queues that routes by name lead to."""
    for router in by_name(given):
        for route in router.values():
            found = route.get("queue") if isinstance(route, Mapping) else route
            if (queue := name_of(found)) is not None:
                yield queue


def name_of(queue: Any) -> str | None:
    """Return the name of a queue, given as text or as an object of kombu; None for none."""
    if not queue:
        return None
    return str(getattr(queue, "name", queue))


def _routers(given: Any) -> Iterator[Any]:
    """Yield the routers in order; pairs of a list are maps of one route."""
    if isinstance(given, str):
        given = loaded(given)
    if given is None:
        return
    if not isinstance(given, list | tuple):
        yield given
    elif _is_pair(given):
        yield {given[0]: given[1]}
    elif given and all(_is_pair(each) for each in given):
        yield dict(given)
    else:
        for each in given:
            yield from _routers(each)


def _is_pair(given: Any) -> bool:
    is_pair = isinstance(given, tuple) and len(given) == 2
    return is_pair and isinstance(given[0], str | re.Pattern) and not callable(given[1])


def _by_name(router: Mapping[Any, Any], name: str) -> Any:
    """Return the route of this name, else of the first pattern that fits."""
    if name in router:
        return router[name]
    for pattern, route in router.items():
        if isinstance(pattern, re.Pattern):
            fits = pattern.match(name) is not None
        else:
            fits = "*" in pattern and fnmatch.fnmatchcase(name, pattern)
        if fits:
            return route
    return None
