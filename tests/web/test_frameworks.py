"""The code of docs/how-to/console.md that mounts the console, each behind a real server."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead import App
from tests.builders import idle
from tests.web.conftest import _register

pytestmark = pytest.mark.system_time

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "console.md"
PREFIX = "/admin/tasks"
SAME_ORIGIN = {"sec-fetch-site": "same-origin"}

SETTINGS = """
SECRET_KEY = "a secret of the test's project"
ALLOWED_HOSTS = ["127.0.0.1"]
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
ROOT_URLCONF = "urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "django.db"}}
USE_TZ = True
"""
URLS = """
from django.contrib.auth import authenticate, login, logout
from django.http import HttpResponse
from django.urls import path

def enter(request):
    login(request, authenticate(username=request.GET["name"], password="secret"))
    return HttpResponse("in")

def leave(request):
    logout(request)
    return HttpResponse("out")

urlpatterns = [path("enter", enter), path("leave", leave)]
"""
USERS = """
import os

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django

django.setup()
from django.contrib.auth.models import User
from django.core.management import call_command

call_command("migrate", verbosity=0)
User.objects.create_superuser("ada", password="secret")
User.objects.create_user("bo", password="secret", is_staff=True)
User.objects.create_user("cy", password="secret")
"""
WSGI = """
import sys
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
import socket
from wsgi import site

class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

server = Server(("127.0.0.1", 0), WSGIRequestHandler, bind_and_activate=False)
server.socket.close()
server.socket = socket.socket(fileno=int(sys.argv[1]))
server.server_name, server.server_port = "127.0.0.1", server.socket.getsockname()[1]
server.setup_environ()
server.set_app(site)
server.serve_forever()
"""


def code(name: str) -> str:
    """Return the block of the page that is saved as this file."""
    found = re.search(
        rf"^```python\n(# {re.escape(name)}\n.*?)^```$", PAGE.read_text(), re.M | re.S
    )
    assert found is not None, name
    return found[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with access.py, and tasks.db: one task of acme in the queue `mail`."""
    (tmp_path / "access.py").write_text(code("access.py"))
    app = App(f"sqlite:///{tmp_path}/tasks.db", name="shop")
    app.migrate()
    send = idle(app, "send", queue="mail")
    send.options(fairness_key="acme").submit()
    asyncio.run(_register(app))
    app.close()
    return tmp_path


@contextmanager
def serving(folder: Path, *command: str) -> Iterator[str]:
    """Run a server on a socket that listens already; yield its address. The server alone holds the
    socket, so that requests are refused when the server has ended."""
    with socket.create_server(("127.0.0.1", 0)) as port:
        address = f"http://127.0.0.1:{port.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, *(word.format(fd=port.fileno()) for word in command)],
            cwd=folder,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "settings"},
            pass_fds=[port.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=(folder / "errors").open("w"),
        )
    try:
        yield address
    finally:
        process.kill()
        process.wait()


def browser(base: str, **given: Any) -> httpx.Client:
    """Return a browser with these headers or cookies."""
    client = httpx.Client(base_url=base, timeout=None, **given)
    client.headers["accept"] = "text/html"
    return client


def uvicorn(module: str) -> list[str]:
    """Return the command that serves `MODULE:site`."""
    return ["-m", "uvicorn", f"{module}:site", "--fd", "{fd}", "--log-level", "warning"]


def check(base: str, folder: Path, ada: dict[str, Any], bo: dict[str, Any]) -> None:
    """Check screens, static files and an action under the prefix. `ada`, who may act, and `bo`, who
    may read, are the headers or cookies of their browsers."""
    origin = SAME_ORIGIN | {"origin": base}
    with browser(base, **ada) as client:
        page = client.get(f"{PREFIX}/queues")
        assert page.status_code == 200, (folder / "errors").read_text()
        found = re.findall(r'(?:href|src|action|hx-get|data-live-source)="([^"#]+)"', page.text)
        assert len(found) > 8 and all(each.startswith(f"{PREFIX}/") for each in found), found
        for address in found:
            if "/static/" in address:
                assert client.get(address).status_code == 200, address
        assert client.get(f"{PREFIX}/").status_code == 200
        assert client.get(f"{PREFIX}/tasks?queue=mail").status_code == 200
        assert client.get(f"{PREFIX}/nowhere").status_code == 404
        response = client.post(f"{PREFIX}/do/pause_queue", data=form_of(page), headers=origin)
        assert response.status_code == 303, response.text
        assert response.headers["location"] == f"{PREFIX}/queues"
        assert "pause queue (queue mail)" in client.get(f"{PREFIX}/queues").text
    with browser(base, **bo) as client:
        page = client.get(f"{PREFIX}/queues")
        assert page.status_code == 200 and "resume_queue" not in page.text
        response = client.post(f"{PREFIX}/do/resume_queue", data=form_of(page), headers=origin)
        assert response.status_code == 403 and "not include the action" in response.text
    with browser(base) as nobody:
        assert nobody.get(f"{PREFIX}/queues").status_code == 403


def form_of(page: httpx.Response) -> dict[str, str]:
    """Return the fields of an action on the queue `mail`, sent from this page."""
    [back] = {*re.findall(r'name="back" value="([^"]+)"', page.text)} or {""}
    csrf_token = re.findall(r'data-csrf="(\w+)"', page.text)[0]
    return {"csrf_token": csrf_token, "back": back, "queue": "mail"}


@pytest.mark.parametrize(
    ("name", "needed"),
    [("admin", "fastapi"), ("site_starlette", "starlette"), ("site_litestar", "litestar")],
)
def test_the_console_in_a_framework(folder: Path, name: str, needed: str) -> None:
    pytest.importorskip(needed)
    (folder / f"{name}.py").write_text(code(f"{name}.py"))
    with serving(folder, *uvicorn(name)) as base:
        check(base, folder, {"headers": {"x-user": "ada"}}, {"headers": {"x-user": "bo"}})


def test_the_console_on_a_wsgi_server(folder: Path) -> None:
    pytest.importorskip("a2wsgi")
    (folder / "wsgi.py").write_text(code("wsgi.py"))
    (folder / "serve.py").write_text(WSGI)
    with serving(folder, "serve.py", "{fd}") as base:
        check(base, folder, {"headers": {"x-user": "ada"}}, {"headers": {"x-user": "bo"}})
        with browser(base) as client:
            assert client.get("/").text == client.get(f"{PREFIX}x").text == "my site"


def test_the_console_in_django_knows_the_users_of_its_sessions(folder: Path) -> None:
    pytest.importorskip("django")
    for name, text in {"settings": SETTINGS, "urls": URLS, "users": USERS}.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "asgi.py").write_text(code("asgi.py"))
    subprocess.run([sys.executable, "users.py"], cwd=folder, check=True)
    with serving(folder, *uvicorn("asgi")) as base:
        cookies = {}
        for name in ("ada", "bo", "cy"):
            with browser(base) as client:
                assert client.get("/enter", params={"name": name}).text == "in"
                cookies[name] = {"sessionid": client.cookies["sessionid"]}
        check(base, folder, {"cookies": cookies["ada"]}, {"cookies": cookies["bo"]})
        for refused in (cookies["cy"], {"sessionid": "0" * 32}):
            with browser(base, cookies=refused) as client:
                assert client.get(f"{PREFIX}/queues").status_code == 403
        with browser(base, cookies=cookies["ada"]) as client:
            assert client.get("/leave").text == "out"
        with browser(base, cookies=cookies["ada"]) as client:
            assert client.get(f"{PREFIX}/queues").status_code == 403
