"""Starlette and other ASGI frameworks: open an App with the site, and close it with the site."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fairlead.app import App

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]
"""Make a context manager for a site, which it gets as its argument."""


def lifespan(app: App, own: Lifespan | None = None) -> Lifespan:
    """Return the lifespan of a site of FastAPI, Starlette or Litestar. It opens the App when the
    site starts, so that the start fails while the store is away or lacks its tables, and closes the
    App when the site ends. `own`: a lifespan of yours, which runs inside; its state is passed
    on."""

    @asynccontextmanager
    async def opened(site: Any) -> AsyncIterator[Any]:
        await asyncio.to_thread(lambda: app.connector.cluster)
        try:
            if own is None:
                yield None
            else:
                async with own(site) as state:
                    yield state
        finally:
            await asyncio.to_thread(app.close)

    return opened
