"""The console as an ASGI application, which serves alone or under a prefix of another one."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Collection
from importlib import import_module, metadata
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, cast

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fairlead.app import App
from fairlead.core import values
from fairlead.errors import ConfigurationError
from fairlead.operate.masking import Mask
from fairlead.web import pages
from fairlead.web.access import Access
from fairlead.web.context import Authorize, ConsoleParts, ConsoleSettings, TraceUrl
from fairlead.web.ended_sessions import EndedSessions
from fairlead.web.guard import LOOPBACK_HOSTS, Guard
from fairlead.web.lake import DEFAULT_LAKE, Lake
from fairlead.web.live import LiveHub
from fairlead.web.page import Page
from fairlead.web.refusals import Refusal, defect, refusal_of
from fairlead.web.rendering import environment
from fairlead.web.routing import Handler, Navigation, ScreenRoute, routes_of
from fairlead.web.sessions import Signer, key_of
from fairlead.web.static_files import FILES
from fairlead.web.waiting import ReadLoop

if TYPE_CHECKING:
    from fairlead.sharded import SyncShardedQueue

SHORTEST_TOKEN = 16
"""Minimum characters of a token that a person chooses."""
MOST_THREADS = 8
"""Handlers that read the store at once; others wait."""
MOST_WAITING = 200
"""Greatest number of handlers that wait; further requests are refused."""


class Console(Starlette):
    """The console of one application."""

    token: str
    """Token of the login; not used with `authorize`."""

    def __init__(self, parts: ConsoleParts, routes: list[ScreenRoute]) -> None:
        self.parts = parts
        self.token = parts.settings.token
        self.screens = routes
        """All routes but those of the login and of static files."""
        self._limiter: anyio.CapacityLimiter | None = None
        super().__init__(
            routes=[
                Route("/static/{name}", FILES.serve),
                Route("/login", self._login, methods=["GET"], name="login"),
                *routes,
                Route("/", self._first),
            ],
            middleware=[
                Middleware(
                    Guard,
                    settings=parts.settings,
                    signer=parts.signer,
                    ended=EndedSessions(parts.app),
                    refuse=self.refuse,
                )
            ],
            exception_handlers={HTTPException: self._not_found},
        )
        # A redirect of the router is absolute, with the scheme and host of this side of a proxy.
        self.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; its routes find the console in the scope."""
        scope["fairlead.console"] = self
        await super().__call__(scope, receive, send)

    async def handle(self, route: ScreenRoute, request: Request) -> Response:
        """Check that the viewer may use the route, and return what its handler responds."""
        page = Page(request, self.parts)
        if not page.allows(route.action, route.scoped):
            return self.refuse(request, _not_allowed(page.access, route))
        return await self._run(route.handler, page)

    async def _run(self, handler: Handler, page: Page) -> Response:
        try:
            if inspect.iscoroutinefunction(handler):
                response: Response = await handler(page)
                return response
            if self._limiter is None:
                self._limiter = anyio.CapacityLimiter(MOST_THREADS)
            if self._limiter.statistics().tasks_waiting >= MOST_WAITING:
                raise Refusal(503, "Too many requests at once", "Try again in a few seconds.")
            run = cast(Callable[[Page], Response], handler)
            return await anyio.to_thread.run_sync(run, page, limiter=self._limiter)
        except Exception as error:
            is_operator = page.access.reads and page.access.tenants is None
            refusal = refusal_of(error, is_operator=is_operator)
            return self.refuse(page.request, refusal or defect(error, page.request.scope["path"]))

    def refuse(self, request: Request, refusal: Refusal) -> Response:
        """Return the page of a refusal, or its JSON for a client that is no browser."""
        headers = {}
        if refusal.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if _is_api(request):
            error = {"status": refusal.status, "title": refusal.title, "detail": refusal.text}
            return JSONResponse({"error": error}, refusal.status, headers)
        page = Page(request, self.parts)
        found = self.parts.templates.get_template("refusal.html")
        html = found.render(page=page, notice=None, refusal=refusal)
        return HTMLResponse(html, refusal.status, headers)

    async def _first(self, request: Request) -> Response:
        return await self._run(_lead_to_first, Page(request, self.parts))

    async def _login(self, request: Request) -> Response:
        return await self._run(_show_login, Page(request, self.parts))

    async def _not_found(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        cure = "Use the menu to go on."
        if _is_api(request):
            cure = "/api/v1/openapi.json lists the operations."
        title = "No such page" if error.status_code == 404 else error.detail
        refusal = Refusal(error.status_code, title, cure)
        response = self.refuse(request, refusal)
        response.headers.update(error.headers or {})
        return response


def console(
    app: App,
    *,
    authorize: Authorize | None = None,
    token: str | None = None,
    secret: str | None = None,
    title: str = "Fairlead",
    mask: Mask | None = None,
    trace_url: TraceUrl | None = None,
    read_only: bool = False,
    hosts: Collection[str] | None = None,
    frame_ancestors: str = "'none'",
    live: bool = True,
    sharded: Collection[SyncShardedQueue] = (),
) -> Console:
    """Return the console of an application: an ASGI application, alone or under any prefix.

    `authorize(request)` returns the Access of a viewer, sync or async. Without it, viewers log in
    with `token`; without that too, the console makes one (`.token`) and serves only the machine on
    which it runs. `secret` signs sessions; give one with `authorize` if several processes serve the
    console, or if sessions outlive a restart. `mask(name, arguments)` returns the arguments of a
    task without secrets; `trace_url(trace_id)` the address of a trace. `hosts`: names that the
    header Host may have. `frame_ancestors`: sources that may show the console in a frame, as in the
    Content-Security-Policy. `live=False`: open pages follow no changes, for servers on which each
    stream holds a thread. `sharded`: sharded queues to show beside the tasks. Raise
    ConfigurationError for values that are too weak or wrong.
    """
    if not isinstance(app, App):
        raise ConfigurationError(f"app {values.brief(app)}: use a fairlead.App")
    if token is not None and len(values.text("token", token)) < SHORTEST_TOKEN:
        raise ConfigurationError(f"token: use at least {SHORTEST_TOKEN} characters")
    if authorize is not None and token is not None:
        raise ConfigurationError("give authorize= or token=, not both")
    if secret is not None and len(values.text("secret", secret)) < SHORTEST_TOKEN:
        raise ConfigurationError(f"secret: use at least {SHORTEST_TOKEN} characters")
    if any(character in frame_ancestors for character in ";,\r\n"):
        raise ConfigurationError("frame_ancestors: use sources separated by blanks")
    is_local = authorize is None and token is None
    if hosts is not None:
        hosts = frozenset(host.lower() for host in values.many("hosts", hosts))
    settings = ConsoleSettings(
        title=values.text("title", title, values.MOST_NAME_BYTES),
        authorize=authorize,
        token=token or secrets.token_urlsafe(32),
        is_token_given=token is not None,
        hosts=hosts if hosts is not None or not is_local else LOOPBACK_HOSTS,
        mask=mask,
        trace_url=trace_url,
        read_only=read_only,
        frame_ancestors=frame_ancestors,
        live=live,
    )
    modules = screen_modules()
    routes = [route for module in modules for route in routes_of(module)]
    entries = [getattr(module, "NAVIGATION", None) for module in modules]
    parts = ConsoleParts(
        app=app,
        settings=settings,
        # A session ends with the token by which it began, also where a secret outlives it.
        signer=Signer(key_of(*[each for each in (secret, token) if each] or [settings.token])),
        templates=environment(),
        navigation=_sorted(entries),
        lake=Lake(app.lake or DEFAULT_LAKE, app.catalog),
        live=LiveHub(app),
        read_loop=ReadLoop(app),
        sharded=_by_name(sharded),
        routes={route.name: route for route in routes},
    )
    if len(parts.routes) < len(routes):
        raise ConfigurationError("two routes of the console have one name")
    return Console(parts, routes)


def _by_name(queues: Collection[SyncShardedQueue]) -> dict[str, SyncShardedQueue]:
    """Return the sharded queues by name. Raise ConfigurationError for a value that is none."""
    if not queues:
        return {}
    from fairlead.sharded import SyncShardedQueue

    found: dict[str, SyncShardedQueue] = {}
    for queue in values.many("sharded", queues):
        if not isinstance(queue, SyncShardedQueue):
            raise ConfigurationError(
                f"sharded {values.brief(queue)}: give queues as SyncShardedQueue(url, name)"
            )
        if queue.name in found:
            raise ConfigurationError(f"sharded: two queues have the name {queue.name!r}")
        found[queue.name] = queue
    return found


def screen_modules() -> list[ModuleType]:
    """Return the modules with routes: those of `fairlead.web.pages`, the JSON API, and those of
    entry points of the group `fairlead.console`."""
    names = sorted(each.name for each in iter_modules(pages.__path__))
    found = [import_module(f"{pages.__name__}.{name}") for name in names]
    found.append(import_module("fairlead.web.api.routes"))
    return found + [point.load() for point in metadata.entry_points(group="fairlead.console")]


def _is_api(request: Request) -> bool:
    path: str = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    return path.startswith("/api/")


def _sorted(entries: list[Navigation | None]) -> list[Navigation]:
    return sorted((each for each in entries if each is not None), key=lambda each: each.order)


def _lead_to_first(page: Page) -> Response:
    """Lead to the first screen of the menu that the viewer may open."""
    if not page.navigation:
        raise Refusal(403, "No access", "No screen here can be limited to your tenants.")
    return RedirectResponse(page.link(page.navigation[0].route), 303)


def _show_login(page: Page) -> Response:
    return page.render("login.html", following=page.query.text("next") or "/")


def _not_allowed(access: Access, route: ScreenRoute) -> Refusal:
    if access.tenants is not None and not route.scoped:
        why = "This page shows all tenants, and your access is limited to some."
    else:
        needed = [route.action] if isinstance(route.action, str) else sorted(route.action or ())
        why = f"Your access does not include the action {' or '.join(needed)}."
    return Refusal(403, "Not allowed", why)
