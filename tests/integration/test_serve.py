"""The end of a worker process."""

from __future__ import annotations

import asyncio

import pytest

from fairlead import App
from fairlead.cli.serve import _serve
from fairlead.engine.node import Node
from fairlead.errors import StoreUnavailable
from fairlead.supervisor.health import NodeHealth


@pytest.mark.virtual_time
async def test_until_empty_survives_an_outage_of_the_store(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(sqlite_url)
    app.migrate()
    unfinished, failures = Node.unfinished, iter([StoreUnavailable("cut")])

    async def cut(node: Node) -> tuple[int, int]:
        if failure := next(failures, None):
            raise failure
        return await unfinished(node)

    monkeypatch.setattr(Node, "unfinished", cut)
    node = app.node()
    async with asyncio.timeout(60):
        await _serve(node, until_empty=True, health=NodeHealth(node))
    app.close()
