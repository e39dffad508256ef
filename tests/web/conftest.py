"""An application with a few tasks, for the tests of the console."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import App


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """An application on a SQLite file, with one task of acme in the queue `mail`."""
    app = App(f"sqlite:///{tmp_path}/tasks.db", name="shop")
    app.migrate()

    @app.task(queue="mail")
    def send(to: str) -> None:
        """Send nothing."""

    send.options(fairness_key="acme").submit("a@example.org")
    asyncio.run(_register(app))
    yield app
    app.close()


async def _register(app: App) -> None:
    """Register the queues of the application, as its first worker does."""
    try:
        await app.store.register_queues(dict.fromkeys(app.queues, 2))
    finally:
        await app.connections.close_async()
