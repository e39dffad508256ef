"""A process that holds the lock of a registered node until it is killed: URL NODE."""

from __future__ import annotations

import asyncio
import sys

from fairlead import App
from fairlead.testing.contract.tasks import FACTS


async def main(url: str, node: str) -> None:
    app = App(url)
    app.migrate()
    connections = app.connector.connections
    assert connections.presence is not None
    await connections.notifier.listen(lambda _: None)
    is_held = asyncio.Event()
    await connections.presence.hold(node, is_held.set)
    await is_held.wait()
    await connections.cluster.register_node(node, [], [], 1, FACTS)
    print("holding", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
