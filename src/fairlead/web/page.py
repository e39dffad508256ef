"""Page: the request that the handler of a screen gets, and the response that it renders."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from fairlead.operate.caller import Caller
from fairlead.operate.context import OperateContext
from fairlead.operate.facts import Facts, read_facts
from fairlead.operate.tasks import Management
from fairlead.web.access import Access
from fairlead.web.context import ConsoleParts
from fairlead.web.inputs import Inputs

if TYPE_CHECKING:
    from fairlead.web.routing import Navigation

T = TypeVar("T")

FACTS_SECONDS = 5.0
"""Seconds for which screens share what they read about all queues and tenants."""
NOTICE_COOKIE = "fairlead_notice"
NOTICE_SECONDS = 30
_LONGEST_NOTICE = 500


class Page:
    """One request of a viewer. The guard has checked who it is; the route, whether it may."""

    def __init__(self, request: Request, parts: ConsoleParts) -> None:
        self.request = request
        self.parts = parts
        self.access: Access = request.scope["fairlead.access"]
        """Rights of the viewer."""
        self.facts_at: int | None = None
        """When the facts of this page were read (microseconds since the epoch, by the clock of the
        store); None if it shows none."""
        self._paths: dict[str, str] = {}
        """Paths of routes without parameters in the path, by name."""

    # reading --------------------------------------------------------------------------------------

    @cached_property
    def query(self) -> Inputs:
        """Parameters of the URL."""
        return Inputs.parse(self.request.scope["query_string"])

    @cached_property
    def form(self) -> Inputs:
        """Parameters of the form that was sent."""
        return Inputs.parse(self.request.scope.get("fairlead.body", b""))

    @property
    def context(self) -> OperateContext:
        """Context of the functions of `fairlead.operate`."""
        return self.parts.app.operate_context

    @property
    def caller(self) -> Caller:
        """Caller of operations: the viewer."""
        settings = self.parts.settings
        return Caller(
            context=self.context,
            wait=self.wait,
            name=self.access.name,
            rights=self.access.actions,
            tenants=self.access.tenants,
            mask=settings.mask,
            trace_url=settings.trace_url,
            read_facts=lambda: self.facts,
        )

    @property
    def management(self) -> Management:
        """Commands for tasks and queues. Raises StoreUnavailable, SchemaMismatch."""
        return Management(self.context)

    def shared(self, key: Hashable, read: Callable[[], T], seconds: float = 1.0) -> T:
        """Return the result of `read`, which viewers with an equal key share for some seconds. The
        key names the screen, every parameter of the read, and the tenants to which it is
        limited."""
        return self.parts.reads.get(key, read, seconds)

    @cached_property
    def facts(self) -> Facts:
        """Facts about all queues and tenants, which all screens share for FACTS_SECONDS. They hold
        every tenant's: the functions of `fairlead.operate` that take them limit what they return.
        Raises NotSupported on a store without rows."""
        return self.shared("facts", lambda: read_facts(self.context), FACTS_SECONDS)

    def of_facts(self, key: Hashable, read: Callable[[Facts], T], seconds: float = 1.0) -> T:
        """Return the result of `read`, which gets the facts; viewers with an equal key share it
        as in `shared`. Raises NotSupported on a store without rows."""
        facts = self.facts
        self.facts_at = facts.at
        return self.shared((key, facts.at), lambda: read(facts), seconds)

    def wait(self, reading: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine, such as that of `queue_view`, in a handler that is a
        plain function."""
        return self.parts.read_loop.wait_for(reading)

    def has(self, route: str) -> bool:
        """Return whether there is a screen or an action of this name that the viewer may use."""
        found = self.parts.routes.get(route)
        return found is not None and self.allows(found.action, found.scoped)

    def allows(self, action: str | frozenset[str] | None, scoped: bool) -> bool:
        """Return whether the viewer may use a route with this action and scope."""
        if not self.access.reads or (self.access.tenants is not None and not scoped):
            return False
        if action is None or isinstance(action, str):
            return action is None or self.access.may(action)
        return any(map(self.access.may, action))

    @property
    def now(self) -> int:
        """Microseconds since the epoch, not before the facts of this page."""
        return max(self.context.clock.now(), self.facts_at or 0)

    # addresses ------------------------------------------------------------------------------------

    def link(self, route: str, /, **parameters: Any) -> str:
        """Return the address of a screen or an action. Parameters that the path does not name go
        into the query; None and empty lists are left out. Names and keys always go into the query,
        because a path cannot hold every text."""
        found = self.parts.routes[route]
        path = self._paths.get(route)
        if path is None:
            in_path = {name: parameters.pop(name) for name in found.param_convertors}
            path = self.base + quote(str(found.url_path_for(route, **in_path)), safe="/%")
            if not in_path:
                self._paths[route] = path
        query = urlencode(
            [
                (name, each)
                for name, value in parameters.items()
                if value is not None
                for each in (value if isinstance(value, list | tuple) else [value])
            ]
        )
        return f"{path}?{query}" if query else path

    @property
    def here(self) -> str:
        """Address of this page with its query."""
        scope = self.request.scope
        query = scope["query_string"].decode("latin-1")
        path = quote(scope["path"])
        return f"{path}?{query}" if query else path

    def with_query(self, **changes: Any) -> str:
        """Return the address of this page with other values of parameters; None removes one."""
        pairs = self.query.pairs(*changes)
        pairs += [(name, str(value)) for name, value in changes.items() if value is not None]
        path = quote(self.request.scope["path"])
        return f"{path}?{urlencode(pairs)}" if pairs else path

    def pager(self, next: str | int | None) -> dict[str, str | None]:
        """Return the addresses of the first page of a list and of the one at `next`, for a
        template; None for one that is not needed."""
        return {
            "first": self.with_query(after=None) if self.query.text("after") else None,
            "following": None if next is None else self.with_query(after=next),
        }

    @property
    def base(self) -> str:
        """Prefix under which the console is mounted, without a slash at its end."""
        return quote(self.request.scope.get("root_path", "").rstrip("/"))

    # responding -----------------------------------------------------------------------------------

    def render(self, template: str, status: int = 200, /, **given: Any) -> Response:
        """Return the page of a template. It gets the values, and `page`."""
        notice = self.notice
        found = self.parts.templates.get_template(template)
        response = HTMLResponse(found.render(**given, page=self, notice=notice), status)
        if notice is not None:
            response.delete_cookie(NOTICE_COOKIE, path=f"{self.base}/")
        return response

    def done(self, message: str, address: str) -> Response:
        """Return the response to an action: a redirect to a screen, which shows the message once.
        Call it after the change, because it drops what viewers share."""
        self.parts.reads.clear()
        response = RedirectResponse(address, 303)
        text = message if len(message) <= _LONGEST_NOTICE else f"{message[:_LONGEST_NOTICE]}…"
        response.set_cookie(
            NOTICE_COOKIE,
            self.parts.signer.sign("notice", text),
            max_age=NOTICE_SECONDS,
            path=f"{self.base}/",
            secure=self.request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return response

    # what base.html shows -------------------------------------------------------------------------

    @cached_property
    def notice(self) -> str | None:
        """Message of the action before; None without one, and for a part that is loaded again."""
        is_part = "hx-request" in self.request.headers
        cookie = None if is_part else self.request.cookies.get(NOTICE_COOKIE)
        return None if cookie is None else self.parts.signer.signed("notice", cookie)

    @property
    def csrf_token(self) -> str:
        """Token that every form carries as `csrf_token`, or a script in the header X-CSRF-Token."""
        token: str = self.request.scope["fairlead.csrf"]
        return token

    @property
    def title(self) -> str:
        """Title of the console."""
        return self.parts.settings.title

    @property
    def has_login(self) -> bool:
        """Whether the console has a login of its own, and so a logout."""
        return self.parts.settings.authorize is None

    @property
    def navigation(self) -> list[Navigation]:
        """Entries of the menu that the viewer may open."""
        return [entry for entry in self.parts.navigation if self.has(entry.route)]

    @property
    def route_name(self) -> str | None:
        """Name of the route of this page; None for a page of an error."""
        route = self.request.scope.get("route")
        return None if route is None else route.name

    def static(self, name: str) -> str:
        """Return the address of a static file, which has a digest of its content."""
        from fairlead.web.static_files import FILES

        return f"{self.base}/static/{FILES.hashed(name)}"
