"""The database of tasks that live in Redis: it runs steps, and joins no transaction."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, NoReturn, TypeVar

from fairlead.backends.redis.sharded.connecting import MOST_CONNECTIONS
from fairlead.backends.redis.sharded.endpoint import RedisEndpoint
from fairlead.backends.redis.sharded.running import run
from fairlead.errors import NotSupported

T = TypeVar("T")

SQL_STORES = "sqlite:// and postgresql://"


class RedisDatabase:
    """A `fairlead.ports.statements.Database` that runs only the steps of `fairlead.sharded`."""

    def __init__(self, endpoint: RedisEndpoint) -> None:
        self.endpoint = endpoint
        self.location = endpoint.location
        # The client connects on first use, and its pool notices a fork.
        self._redis: Any = endpoint.server.client(max_connections=MOST_CONNECTIONS)

    def run(self, steps: Any) -> Any:
        confirmation = self.endpoint.server.confirmation
        return run(self._redis, self.endpoint.prefix, steps, confirmation)

    read_now = run

    async def run_async(self, steps: Any, durable: bool = True) -> Any:
        return await asyncio.to_thread(self.run, steps)

    async def read(self, steps: Any) -> Any:
        return await asyncio.to_thread(self.run, steps)

    def transaction(self) -> AbstractContextManager[Any]:
        self._refuse()

    def transaction_async(self) -> AbstractAsyncContextManager[Any]:
        self._refuse()

    def join(self, connection: Any, steps: Any) -> NoReturn:
        self._refuse()

    async def join_async(self, connection: Any, steps: Any) -> NoReturn:
        self._refuse()

    complete, complete_async = join, join_async

    async def close_async(self) -> None:
        """Do nothing: there is no client for the event loop alone."""

    async def close_loop(self) -> None:
        """Do nothing: there is no client for the event loop alone."""

    def close(self) -> None:
        self._redis.close()

    @staticmethod
    def _refuse() -> NoReturn:
        raise NotSupported(
            "a task on Redis cannot join your transaction: leave connection= out;"
            f" tasks on {SQL_STORES} can"
        )
