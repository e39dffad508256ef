"""The guard before all routes: who sends a request, whether a page of ours sent it, and headers
that keep browsers from doing more than a page needs.

Sources: OWASP Cheat Sheets on CSRF, session management and HTTP headers; Fetch Metadata Request
Headers, W3C; the login of Jupyter, whose token in the URL becomes a cookie.
"""

from __future__ import annotations

import hashlib
import inspect
import ipaddress
import math
import re
import time
from collections.abc import Callable
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, quote

from markupsafe import escape
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairlead.core import values
from fairlead.errors import ConfigurationError
from fairlead.web.access import Access
from fairlead.web.context import ConsoleSettings
from fairlead.web.ended_sessions import EndedSessions
from fairlead.web.inputs import MOST_PATH_BYTES, MOST_QUERY_BYTES, Inputs, own_path
from fairlead.web.login_throttle import FailedLogins
from fairlead.web.refusals import Refusal, defect, refusal_of
from fairlead.web.sessions import Session, Signer, is_same_secret

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
MOST_BODY_BYTES = 256 * 1024
LOGIN, LOGOUT, STATIC = "/login", "/logout", "/static/"

_CONTINUE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Console</title>'
    '<meta http-equiv="refresh" content="0; url={0}"><p><a href="{0}">Continue</a></p></html>'
)
"""Page that leads to an address of the console at once."""

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:@/\[\]]+))(?::[0-9]{1,5})?", re.ASCII)

_SAFE = ("GET", "HEAD", "OPTIONS")

Refuse = Callable[[Request, Refusal], Response]
"""Function that makes the page, or the JSON, of a refusal."""


class Guard:
    """Middleware that authenticates each request and bounds what it may hold."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: ConsoleSettings,
        signer: Signer,
        ended: EndedSessions,
        refuse: Refuse,
    ) -> None:
        self._app = app
        self._settings = settings
        self._signer = signer
        self._refuse = refuse
        self._failed = FailedLogins()
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        scope["fairlead.access"], scope["fairlead.csrf"] = Access.none(), ""
        visit = _Visit(request, self._settings, self._signer)
        try:
            response = await self._check(visit)
        except HTTPException as error:  # raised by authorize, as for a login of its own
            refusal = Refusal(error.status_code, "Not allowed", error.detail)
            response = self._refuse(request, refusal)
            response.headers.update(error.headers or {})
        except Exception as error:
            refusal = refusal_of(error, is_operator=False) or defect(error, scope["path"])
            response = self._refuse(request, refusal)
        sender = visit.with_headers(send)
        if response is not None:
            await response(scope, receive, sender)
        else:
            await self._app(scope, visit.receive, sender)

    async def _check(self, visit: _Visit) -> Response | None:
        """Return the response to a request that no route serves; None to go on. Raise Refusal."""
        visit.check_bounds()
        visit.check_host()
        if visit.path.startswith(STATIC):
            return None
        session = visit.session
        if session is not None and await run_in_threadpool(self._ended.has, session):
            session = None
        if visit.path == LOGIN and visit.request.method in ("GET", "HEAD", "POST"):
            return await self._login(visit)
        access = await self._access(visit, session)
        if access is None:
            return visit.to_login()
        if not access.reads:
            raise Refusal(
                403, "No access", "You may not open this console: ask whoever runs it for access."
            )
        if session is None and not visit.has_bearer:
            session = visit.start(is_logged_in=False)
        scope = visit.request.scope
        scope["fairlead.access"] = access.reading() if self._settings.read_only else access
        if session is not None:
            scope["fairlead.csrf"] = self._signer.csrf_token(session, access.name)
        if visit.request.method not in _SAFE:
            visit.check_origin()
            await visit.read_body()
            if not visit.has_bearer:
                visit.check_csrf_token()
            if visit.path == LOGOUT:
                visit.end()
                if session is not None:
                    await run_in_threadpool(self._ended.add, session, time.time())
                return RedirectResponse(f"{visit.base}{LOGIN}", 303)
        return None

    async def _access(self, visit: _Visit, session: Session | None) -> Access | None:
        """Return the access of the viewer; None if the viewer has to log in."""
        authorize = self._settings.authorize
        if authorize is None:
            if visit.has_bearer:
                self._check_secret(visit, visit.bearer)
                return Access.full()
            return Access.full() if session is not None and session.is_logged_in else None
        if inspect.iscoroutinefunction(authorize):
            access = await authorize(visit.request)
        else:
            access = await run_in_threadpool(authorize, visit.request)
            if inspect.isawaitable(access):
                access = await access
        if not isinstance(access, Access):
            raise ConfigurationError(f"authorize returned {values.brief(access)}: use an Access")
        return access

    async def _login(self, visit: _Visit) -> Response | None:
        """Exchange the token for a session; return None to show the form."""
        if self._settings.authorize is not None:
            raise Refusal(404, "No such page", "The application around this console has the login.")
        if visit.request.method == "POST":
            visit.check_origin()
            form = Inputs.parse(await visit.read_body())
            self._check_secret(visit, form.text("token", 1000) or "")
            return self._enter(visit, form.text("next") or "/")
        query = parse_qs(visit.request.scope["query_string"].decode("latin-1"))
        token = query.get("token", [""])[0]
        if not token:
            return None
        # A server that logs the request after the response logs no token.
        visit.request.scope["query_string"] = b""
        visit.referrer_policy = "no-referrer"
        visit.check_is_page()
        self._check_secret(visit, token)
        return self._enter(visit, query.get("next", ["/"])[0])

    def _enter(self, visit: _Visit, following: str) -> Response:
        visit.start(is_logged_in=True)
        return visit.lead_to(visit.base + own_path(following))

    def _check_secret(self, visit: _Visit, given: str) -> None:
        """Raise Refusal if it is not the token, or after too many wrong ones."""
        address, now = visit.address, time.monotonic()
        wait = self._failed.wait(address, now)
        is_right = is_same_secret(given, self._settings.token)
        if is_right and not self._settings.is_token_given:
            return  # nobody can guess it, so that wrong ones of others need not keep its owner out
        if wait > 0:
            raise Refusal(
                429,
                "Too many wrong tokens",
                f"Wait {math.ceil(wait)} seconds, then give the token that the console printed when"
                " it started.",
            )
        if not is_right:
            self._failed.add(address, now)
            raise Refusal(
                401, "Wrong token", "Use the token that the console printed when it started."
            )


class _Visit:
    """One request in the guard."""

    def __init__(self, request: Request, settings: ConsoleSettings, signer: Signer) -> None:
        self.request = request
        self.referrer_policy = "same-origin"
        self._settings = settings
        self._signer = signer
        self._set_cookie: str | None = None
        self._body: bytes | None = None
        scope = request.scope
        root = scope.get("root_path", "").rstrip("/")
        path: str = scope["path"]
        self.base = quote(root)
        self.path = path[len(root) :] if path.startswith(root) else path
        server = scope.get("server") or ("", 0)
        # Browsers share cookies between ports, and between a path and those below it.
        mount = hashlib.sha256(root.encode(errors="surrogatepass")).hexdigest()[:6]
        self._cookie_name = f"fairlead_session_{server[1] or 0}_{mount}"
        cookies = request.cookies
        cookie = cookies.get(self._cookie_name)
        self.session = None if cookie is None else signer.session(cookie, time.time())
        client = scope.get("client")
        self.address: str = client[0] if client else ""

    # checks ---------------------------------------------------------------------------------------

    def check_bounds(self) -> None:
        """Raise Refusal for a path, a query or a body that is too long."""
        scope, headers = self.request.scope, self.request.headers
        is_long = len(scope["path"].encode(errors="surrogatepass")) > MOST_PATH_BYTES
        if is_long or len(scope["query_string"]) > MOST_QUERY_BYTES:
            raise Refusal(414, "The address is too long", f"Use at most {MOST_QUERY_BYTES} bytes.")
        length = headers.get("content-length") or "0"  # WSGI servers may give an empty text
        is_number = length.isascii() and length.isdigit() and len(length) <= 12
        if not is_number or int(length) > MOST_BODY_BYTES:
            raise _too_large()

    def check_host(self) -> None:
        """Raise Refusal for a Host that is not ours, so that no other name can be bound to this
        address (DNS rebinding), and for another machine if nobody chose a token."""
        settings = self._settings
        if settings.hosts is not None and host_name(self.request.headers) not in settings.hosts:
            raise Refusal(
                403,
                "Unknown host name",
                "This console answers only under the names of this machine; allow others by"
                " hosts={...} or --allow-host.",
            )
        is_open = settings.authorize is not None or settings.is_token_given
        if not is_open and not is_loopback(self.address):
            raise Refusal(
                403,
                "This machine only",
                "Without authorize= and without a token of its own, this console serves only the"
                " machine on which it runs.",
            )

    def check_origin(self) -> None:
        """Raise Refusal if a page of another site sent the request."""
        if not is_same_origin(self.request.headers):
            raise Refusal(
                403, "Sent by another site", "Open the console itself, and do this action there."
            )

    def check_is_page(self) -> None:
        """Raise Refusal if a browser wants an address as a part of a page, such as an image, by
        which another site could use up the tries of a login."""
        if self.request.headers.get("sec-fetch-dest", "document") != "document":
            raise Refusal(403, "Not a page", "Open this address in a window of its own.")

    def check_csrf_token(self) -> None:
        """Raise Refusal without the CSRF token of the session."""
        expected: str = self.request.scope["fairlead.csrf"]
        given = self.request.headers.get("x-csrf-token")
        if given is None and self._is_form:
            given = Inputs.parse(self._body or b"").exact("csrf_token")
        if not expected or not is_same_secret(given or "", expected):
            raise Refusal(
                403, "The form has expired", "Go back, load the page again, and send it again."
            )

    @property
    def has_bearer(self) -> bool:
        """Whether the request carries a token in the header Authorization, which no form of another
        site can send."""
        return self.request.headers.get("authorization", "").lower().startswith("bearer ")

    @property
    def bearer(self) -> str:
        """Token in the header Authorization."""
        return self.request.headers["authorization"][len("bearer ") :].strip()

    @property
    def _is_form(self) -> bool:
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        return kind == "application/x-www-form-urlencoded"

    # body -----------------------------------------------------------------------------------------

    async def read_body(self) -> bytes:
        """Read the body, at most MOST_BODY_BYTES. Raise Refusal for more."""
        chunks, size = [], 0
        async for chunk in self.request.stream():
            size += len(chunk)
            if size > MOST_BODY_BYTES:
                raise _too_large()
            chunks.append(chunk)
        self._body = b"".join(chunks)
        self.request.scope["fairlead.body"] = self._body if self._is_form else b""
        self.request.scope["fairlead.raw_body"] = self._body
        return self._body

    async def receive(self) -> Message:
        """Give the route the body that was read."""
        if self._body is None:
            return await self.request.receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    # session --------------------------------------------------------------------------------------

    def start(self, is_logged_in: bool) -> Session:
        """Begin a session, whose cookie goes out with the response."""
        session = self._signer.new_session(is_logged_in, time.time())
        self._set_cookie = self._cookie(self._signer.cookie(session))
        return session

    def end(self) -> None:
        """Delete the cookie of the session."""
        self._set_cookie = self._cookie("", "Max-Age=0")

    def to_login(self) -> Response:
        """Send a browser to the login; raise Refusal for other clients."""
        is_page = self.request.method == "GET" and "text/html" in self.request.headers.get(
            "accept", ""
        )
        if not is_page or "hx-request" in self.request.headers:
            raise Refusal(
                401, "Not logged in", "Log in with the token that the console printed at its start."
            )
        query = self.request.scope["query_string"].decode("latin-1")
        here = own_path(quote(self.path) + (f"?{query}" if query else ""))
        if self._is_from_elsewhere:
            return self.lead_to(self.base + here)
        return RedirectResponse(f"{self.base}{LOGIN}?next={quote(here, safe='')}", 303)

    def lead_to(self, address: str) -> Response:
        """Send a browser to an address of the console. After a link on another site, a browser
        sends our cookie only to addresses that a page of ours leads to."""
        if self._is_from_elsewhere:
            return HTMLResponse(_CONTINUE.format(escape(address)))
        return RedirectResponse(address, 303)

    @property
    def _is_from_elsewhere(self) -> bool:
        return self.request.headers.get("sec-fetch-site", "") in ("cross-site", "same-site")

    def _cookie(self, value: str, *more: str) -> str:
        secure = ["Secure"] if self.request.url.scheme == "https" else []
        cookie: SimpleCookie = SimpleCookie({self._cookie_name: value})
        fields = [cookie[self._cookie_name].OutputString(), f"Path={self.base}/", "HttpOnly"]
        return "; ".join([*fields, "SameSite=Strict", *secure, *more])

    # response -------------------------------------------------------------------------------------

    def with_headers(self, send: Send) -> Send:
        """Return `send` with the headers of every response of the console."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = (
                    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
                    " connect-src 'self'; form-action 'self'; base-uri 'none';"
                    f" frame-ancestors {self._settings.frame_ancestors}"
                )
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = self.referrer_policy
                headers["Cross-Origin-Opener-Policy"] = "same-origin"
                headers["Cross-Origin-Resource-Policy"] = "same-origin"
                headers["Permissions-Policy"] = "camera=(), geolocation=(), microphone=()"
                headers["X-Robots-Tag"] = "noindex"
                if self._settings.frame_ancestors == "'none'":
                    headers["X-Frame-Options"] = "DENY"
                headers.setdefault("Cache-Control", "no-store")
                if self._set_cookie is not None:
                    headers.append("Set-Cookie", self._set_cookie)
            await send(message)

        return send_with_headers


def is_same_origin(headers: Headers) -> bool:
    """Return whether a request comes from a page of ours, or from a client that is no browser."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site not in (None, "same-origin"):
        return False
    if origin is None or (origin == "null" and site == "same-origin"):
        return True
    scheme, _, place = origin.partition("://")
    return scheme in ("http", "https") and place.lower() == headers.get("host", "").lower()


def host_name(headers: Headers) -> str:
    """Return the name in the header Host, without its port and the brackets of IPv6; "" for a Host
    that is none."""
    found = _HOST.fullmatch(headers.get("host", "").lower())
    return "" if found is None else found[1] or found[2]


def is_loopback(address: str) -> bool:
    """Return whether an address is this machine. A server on a Unix socket names no client: only
    this machine can reach it."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address in ("", "localhost", "testclient")
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def _too_large() -> Refusal:
    return Refusal(413, "The request is too large", f"Send at most {MOST_BODY_BYTES:,} bytes.")
