"""The web console inside a Django project, for staff users.

The console is an ASGI application. A thread of its own runs it, so that synchronous and
asynchronous servers can serve it.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Coroutine, Iterator
from typing import Any
from urllib.parse import quote

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.urls import reverse
from django.utils.crypto import salted_hmac
from django.views.decorators.csrf import csrf_exempt

from fairlead.contrib.django.configuration import Configuration
from fairlead.contrib.django.project import get_app
from fairlead.web import Access, console
from fairlead.web.application import Console

_USER = "fairlead.django_user"
_HOP_BY_HOP = frozenset({"connection", "transfer-encoding", "keep-alive"})


# The console checks the origin and a CSRF token of its own with every change.
@csrf_exempt
def serve_console(request: Any, path: str = "") -> Any:
    """Serve the console to staff users with the permission `fairlead.view_task`; others log in
    first. Raise PermissionDenied for users without it."""
    user = request.user
    if not user.is_authenticated:
        return redirect_to_login(request.get_full_path(), _login_url())
    if not user.is_active or not user.is_staff or not user.has_perm("fairlead.view_task"):
        raise PermissionDenied
    thread = _thread(os.getpid())
    return thread.run(_respond(thread.console, _scope(request, path), request.body))


def access_of(request: Any) -> Access:
    """Return the access of a Django user: all actions with the permission `fairlead.change_task`,
    else reading."""
    user = request.scope[_USER]
    name = user.get_username()
    return (
        Access.full(name=name) if user.has_perm("fairlead.change_task") else Access.read(name=name)
    )


def _login_url() -> str:
    from django.urls import NoReverseMatch

    try:
        return str(reverse("admin:login"))
    except NoReverseMatch:
        return str(settings.LOGIN_URL)


class _Thread:
    """A thread with an event loop, which runs the console."""

    def __init__(self) -> None:
        secret = salted_hmac("fairlead.contrib.django.console", "session", algorithm="sha256")
        # No live updates, because each open page would hold a thread of a WSGI server.
        self.console: Console = console(
            get_app(),
            authorize=access_of,
            secret=secret.hexdigest(),
            mask=Configuration.load().mask_function,
            live=False,
        )
        self._loop = asyncio.new_event_loop()
        threading.Thread(
            target=self._loop.run_forever, name="fairlead-console", daemon=True
        ).start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the thread, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


@functools.cache
def _thread(pid: int) -> _Thread:
    """Return the thread of this process; a forked one starts its own."""
    return _Thread()


def _scope(request: Any, path: str) -> dict[str, Any]:
    full: str = request.path
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": full,
        "raw_path": quote(full).encode(),
        "root_path": full.removesuffix(path).rstrip("/"),
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1"),
        "headers": list(_headers(request)),
        "client": (request.META.get("REMOTE_ADDR", ""), 0),
        "server": (request.META.get("SERVER_NAME", ""), int(request.META.get("SERVER_PORT") or 0)),
        _USER: request.user,
    }


def _headers(request: Any) -> Iterator[tuple[bytes, bytes]]:
    for name, value in request.headers.items():
        yield name.lower().encode("latin-1"), value.encode("latin-1", "replace")


async def _respond(app: Console, scope: dict[str, Any], body: bytes) -> Any:
    response = HttpResponse()
    parts: list[bytes] = []
    is_read = False

    async def receive() -> dict[str, Any]:
        nonlocal is_read
        if is_read:
            return {"type": "http.disconnect"}
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            response.status_code = message["status"]
            del response["Content-Type"]
            for name, value in message["headers"]:
                _set_header(response, name.decode("latin-1"), value.decode("latin-1"))
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    response.content = b"".join(parts)
    return response


def _set_header(response: Any, name: str, value: str) -> None:
    if name.lower() == "set-cookie":
        response.cookies.load(value)
    elif name.lower() not in _HOP_BY_HOP:
        response[name] = value
