"""The sites of examples/web_shop under load: an order and its task commit or roll back together,
and each task runs once."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest

from fairlead import App, State
from tests.end_to_end.test_command_line import ROOT
from tests.tiers import NIGHTLY

pytestmark = pytest.mark.system_time

SHOP = ROOT / "examples" / "web_shop"
REQUESTS = 150
FLASK = """
import sys
from werkzeug.serving import make_server
from flask_shop import site

make_server("127.0.0.1", 0, site, threaded=True, fd=int(sys.argv[1])).serve_forever()
"""


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a migrated database."""
    if request.param == "postgres":
        return str(request.getfixturevalue("migrated_postgres_url"))
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    app = App(url)
    app.migrate()
    app.close()
    return url


def engine_url(url: str, name: str) -> str:
    """Return the URL for SQLAlchemy of the same database."""
    if url.startswith("sqlite"):
        driver = "sqlite" if name in ("sqlmodel", "flask") else "sqlite+aiosqlite"
        # The machine of the tests may be busy: a writer waits long for its turn.
        return f"{driver}:{url.partition(':')[2]}?timeout=120"
    driver = "asyncpg" if name == "starlette" else "psycopg"
    return f"postgresql+{driver}:{url.partition(':')[2]}"


@contextmanager
def running(
    folder: Path, urls: dict[str, str], *command: str, fd: int | None = None
) -> Iterator[None]:
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env={**os.environ, **urls, "PYTHONPATH": str(ROOT / "src")},
            pass_fds=[] if fd is None else [fd],
            stdout=log,
            stderr=log,
        )
    try:
        yield
        process.send_signal(signal.SIGINT)
        process.wait()
    finally:
        process.kill()
        process.wait()


async def place_orders(base: str) -> dict[int, int]:
    """Send all orders, twenty at a time; return the status of the response to each."""
    free = asyncio.Semaphore(20)
    # Without reuse of connections: the server may close an idle one while a request is under way.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=base, timeout=300, limits=limits) as client:

        async def place(number: int) -> tuple[int, int]:
            async with free:
                return number, (await client.post(f"/orders/{number}")).status_code

        return dict(await asyncio.gather(*(place(n) for n in range(1, REQUESTS + 1))))


def orders(url: str) -> dict[int, int]:
    """Return how often each order is confirmed."""
    connect = sqlite3.connect if url.startswith("sqlite") else psycopg.connect
    connection = connect(url.removeprefix("sqlite:///"))
    try:
        return dict(connection.execute("SELECT id, confirmed FROM orders").fetchall())
    finally:
        connection.close()


SHOPS = ["fastapi", "flask", "starlette", "litestar", "sqlmodel"]
RUNS = [
    *((name, "sqlite") for name in SHOPS),
    *((name, "postgres") for name in SHOPS[:2]),
    *(pytest.param(name, "postgres", marks=NIGHTLY("the matrix")) for name in SHOPS[2:]),
]


@pytest.mark.parametrize(("name", "url"), RUNS, indirect=["url"])
def test_orders_and_their_tasks_commit_or_roll_back_together_under_load(
    name: str, url: str, tmp_path: Path
) -> None:
    pytest.importorskip(name)
    shutil.copytree(SHOP, tmp_path, dirs_exist_ok=True)
    (tmp_path / "serve.py").write_text(FLASK)
    with socket.create_server(("127.0.0.1", 0)) as port:
        fd = port.fileno()
        site = ["-m", "uvicorn", f"{name}_shop:site", "--fd", str(fd), "--log-level", "warning"]
        if name == "flask":
            site = ["serve.py", str(fd)]
        base = f"http://127.0.0.1:{port.getsockname()[1]}"
        worker = ["-m", "fairlead", "worker", f"{name}_shop:tasks", "--log-level", "warning"]
        urls = {"SHOP_URL": url, "SHOP_ENGINE_URL": engine_url(url, name)}
        with running(tmp_path, urls, *site, fd=fd):
            httpx.get(base, timeout=300)  # the site has made its tables, which only one process can
            with running(tmp_path, urls, *worker):
                statuses = asyncio.run(place_orders(base))
                app = App(url)
                unfinished = asyncio.run(_until_finished(app))
    refused = {number for number in range(1, REQUESTS + 1) if number % 3 == 0}
    assert {n for n, status in statuses.items() if status == 409} == refused, (
        tmp_path / "log"
    ).read_text()
    accepted = {n for n, status in statuses.items() if status == 201}
    assert accepted | refused == {*range(1, REQUESTS + 1)}, (tmp_path / "log").read_text()
    assert unfinished == []
    assert orders(url) == dict.fromkeys(accepted, 1), (tmp_path / "log").read_text()
    done = app.management.find(state=State.DONE, limit=1000)
    assert len(done) == len(accepted)
    app.close()


async def _until_finished(app: App) -> list[str]:
    while app.management.find(state=State.SUBMITTED, limit=1) or app.management.find(
        state=State.PROCESSING, limit=1
    ):
        await asyncio.sleep(0.1)
    return [
        task.id
        for state in (State.WAITING, State.ERROR)
        for task in app.management.find(state=state, limit=10)
    ]


def test_the_guide_shows_the_code_of_the_examples() -> None:
    page = (ROOT / "docs" / "how-to" / "web-frameworks.md").read_text()
    shown = re.findall(r"^```python\n(# (\w+\.py)\n.*?)^```$", page, re.M | re.S)
    assert len(shown) == 5
    assert [code for code, _ in shown] == [(SHOP / name).read_text() for _, name in shown]
