"""A process that holds the lock of a node until it is killed: URL NODE."""

from __future__ import annotations

import asyncio
import sys

from fairlead import App


async def main(url: str, node: str) -> None:
    connections = App(url).connector.connections
    assert connections.presence is not None
    await connections.notifier.listen(lambda _: None)
    await connections.presence.hold(node, lambda: None)
    print("holding", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
