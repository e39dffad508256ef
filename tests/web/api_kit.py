"""An application with tasks of every state, and a console that serves it, for the tests of the JSON
API."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn

from fairlead import App, NoRetry
from fairlead.cli.web import listening
from fairlead.operate.policies import PolicyManagement
from fairlead.operate.store.policies import PolicyDraft
from fairlead.pipeline.models import ATTEMPTS, LATENCY_HIST, SERVICE, TENANT_SHARE
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.testing import drain
from tests.pipeline.frames import T0, attempt
from tests.pipeline.tables_by_hand import put, row

HOSTILE = "<img src=x>\"'`{{7*7}}</script>\u202etxt\u202c\x1b[2J/../?#&"
"""A name that a page, a terminal or a path would obey."""
SECRET = "umbrella-secret-7f3a"
"""Text that every task of the tenant `umbrella` has."""
FUTURE = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)


class Shop(NamedTuple):
    """An application and its tasks."""

    app: App
    send: Any
    charge: Any
    post: Any


def shop(url: str) -> Shop:
    """Return an application with its tables."""
    app = App(url, name="shop")
    app.migrate()
    app.queue("ledger", kind="ordered", partitions=2)

    @app.task(queue="mail", name="send")
    def send(to: str, number: int = 0) -> None:
        """Send nothing."""

    @app.task(queue="mail", name="charge", retry=NoRetry())
    def charge(account: str) -> None:
        raise ValueError(f"card of {account} expired {HOSTILE}")

    @app.task(queue="ledger", name="post", retry=NoRetry())
    def post(number: int) -> None:
        if number < 0:
            raise ValueError("a negative entry")

    @app.periodic("*/5 * * * *", queue="mail", name="clean")
    def clean() -> None:
        """Clean nothing."""

    return Shop(app, send, charge, post)


async def fill(shop: Shop) -> App:
    """Give the application tasks that are done, in ERROR, ready and waiting, for three tenants, and
    a version of weights."""
    app, send, charge, post = shop
    for tenant in ("acme", "umbrella", HOSTILE):
        mark = SECRET if tenant == "umbrella" else tenant
        key = {"fairness_key": tenant if "/" in tenant else f"{tenant}/eu"}
        send.options(**key).submit(f"{mark}-done")
        charge.options(**key).submit_many([{"account": f"{mark}-{n}"} for n in range(8)])
    post.options(ordering_key="a-1", fairness_key="umbrella").submit(number=-1)
    await drain(app)
    for tenant in ("acme", "umbrella", HOSTILE):
        mark = SECRET if tenant == "umbrella" else tenant
        key = {"fairness_key": tenant if "/" in tenant else f"{tenant}/eu"}
        send.options(**key).submit_many([{"to": f"{mark}-{n}", "number": 2**62} for n in range(9)])
        send.options(**key, run_at=FUTURE, unique_key=f"{mark}-later").submit(f"{mark}-later")
    draft = PolicyDraft(
        queue="mail",
        author="ann",
        why="test",
        computed_at=app.clock.now(),
        guarded={"umbrella": 2.0},
        is_canary=True,
    )
    for supersedes in (None, 1):
        PolicyManagement(app.operate_context).publish(draft, supersedes)
    await app.connections.close_async()
    return app


def add_lake(app: App, folder: Path) -> None:
    """Give the application a lake with two hours of runs of two tenants."""
    app.lake = str(folder / "lake")
    lake = Warehouse(Location.of(app.lake))
    hours = [T0.replace(minute=0, second=0, microsecond=0) + timedelta(hours=n) for n in (0, 1)]
    tenants = ("acme/eu", "umbrella/eu")
    of = [(hour, {"queue": "mail", "fairness_key": key}) for hour in hours for key in tenants]
    part = {"window_s": 60, "busy_us": 2_500_000}
    put(lake, SERVICE, [row(SERVICE, window_start=at, **part, **key) for at, key in of])
    put(lake, TENANT_SHARE, [row(TENANT_SHARE, window_start=at, **part, **key) for at, key in of])
    waits = {"measure": "pickup", "bucket": 700, "max_us": 1 << 30}
    together = {"queue": "mail", "fairness_key": "*"}
    put(lake, LATENCY_HIST, [row(LATENCY_HIST, hour=at, **waits, **together) for at in hours])
    begun = timedelta(seconds=1)
    runs = [attempt(submitted_at=at, started_at=at + begun, **key) for at, key in of]
    put(lake, ATTEMPTS, runs)


@contextmanager
def serving(console: Any) -> Iterator[str]:
    """Serve a console on a port of this machine; yield its address."""
    with listening("127.0.0.1", 0) as port:
        server = uvicorn.Server(
            uvicorn.Config(console, log_level="warning", lifespan="off", ws="none")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [port]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{port.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
