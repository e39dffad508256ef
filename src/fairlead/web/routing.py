"""Routes of the console: each says which action it does, and whether it keeps to the viewer's
tenants; the check runs before its handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fairlead.core import values
from fairlead.errors import ConfigurationError
from fairlead.web.access import ACTIONS
from fairlead.web.page import Page

Needed = str | frozenset[str] | None
"""The action that a viewer must have, or several of which any one will do; None for a screen."""

Handler = Callable[[Page], Response | Awaitable[Response]]
"""Handler of a screen: a plain function runs in a thread, a coroutine function on the loop."""


@dataclass(frozen=True, kw_only=True)
class Navigation:
    """Entry of a screen in the menu."""

    title: str
    route: str
    """Name of the route that the entry leads to; it takes no parameters."""
    order: int
    """Position in the menu, ascending."""


class ScreenRoute(Route):
    """Route of a screen or of an action."""

    def __init__(
        self,
        path: str,
        handler: Handler,
        *,
        name: str,
        methods: Sequence[str],
        action: Needed,
        scoped: bool,
    ) -> None:
        self.handler = handler
        self.action = action
        self.scoped = scoped

        async def endpoint(request: Request) -> Response:
            answer: Response = await request.scope["fairlead.console"].handle(self, request)
            return answer

        super().__init__(path, endpoint, methods=methods, name=name)


def screen(path: str, handler: Handler, *, name: str, scoped: bool = False) -> ScreenRoute:
    """Return the route of a screen, which reads only.

    `scoped`: the handler shows nothing but the tenants of `page.access`; without it, a viewer who
    is limited to tenants gets 403.
    """
    return ScreenRoute(path, handler, name=name, methods=["GET"], action=None, scoped=scoped)


def action(
    path: str, handler: Handler, *, name: str, action: str | frozenset[str], scoped: bool = False
) -> ScreenRoute:
    """Return the route of an action, a POST. `action`: one of ACTIONS, which the viewer must have;
    of several, any one, and the handler checks which. Raise ConfigurationError for another name."""
    needed = {action} if isinstance(action, str) else action
    if not needed or not needed <= ACTIONS:
        raise ConfigurationError(f"action {values.brief(action)} of route {name} is unknown")
    return ScreenRoute(path, handler, name=name, methods=["POST"], action=action, scoped=scoped)


def routes_of(module: Any) -> list[ScreenRoute]:
    """Return the routes of a module of a screen. Raise ConfigurationError for other routes, which
    nothing would check."""
    found = list(module.routes())
    for route in found:
        if not isinstance(route, ScreenRoute):
            raise ConfigurationError(
                f"{module.__name__} has a route that is no ScreenRoute: use screen() or action()"
            )
    return found
