"""Two versions of one application: `new` has another task, a periodic task, and lacks a task."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import fairlead

Handler = Callable[..., Awaitable[None]]

_trace = os.open(
    os.environ.get("CRASH_TRACE", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
)


def trace(n: int) -> None:
    """Append one line by one write."""
    os.write(_trace, f"{n} {os.getpid()} {time.time():.6f}\n".encode())


async def work(n: int) -> None:
    trace(n)


async def removed(n: int) -> None:
    trace(n)


async def added(n: int) -> None:
    trace(n)


async def tick() -> None:
    trace(-1)


VERSIONS: dict[str, list[Handler]] = {"old": [work, removed], "new": [work, added]}


def application(version: str, url: str) -> tuple[fairlead.App, dict[str, Any]]:
    """Return one version of the application and its tasks by name."""
    app = fairlead.App(url)
    tasks = {each.__name__: app.task(name=each.__name__)(each) for each in VERSIONS[version]}
    if version == "new":
        app.periodic("* * * * *")(app.task(name="tick")(tick))
    return app, tasks


_url = os.environ.get("CRASH_URL", "sqlite:///deploy.db")
old, _ = application("old", _url)
new, _ = application("new", _url)
