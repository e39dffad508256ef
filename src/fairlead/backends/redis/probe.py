"""The probe of a Redis for the doctor: whether it accepts writes now, and if not, why."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fairlead.backends.redis.sender import RESPONSE_SECONDS
from fairlead.backends.redis.sharded.endpoint import RedisEndpoint
from fairlead.backends.redis.sharded.running import run_async
from fairlead.backends.redis.sharded.steps import RedisCall, Steps
from fairlead.errors import ConfigurationError, StoreUnavailable


@asynccontextmanager
async def probed(endpoint: RedisEndpoint) -> AsyncIterator[tuple[Any, float]]:
    """Yield a client of the Redis, and the milliseconds that it took to respond, once Redis has
    accepted a write that changes nothing. Raise StoreUnavailable with the cause otherwise."""
    redis = endpoint.server.client_async(
        socket_timeout=RESPONSE_SECONDS, socket_connect_timeout=RESPONSE_SECONDS
    )
    try:
        began = time.monotonic()
        await run_async(redis, endpoint.prefix, _write_nothing(endpoint.prefix))
        yield redis, (time.monotonic() - began) * 1000
    except (StoreUnavailable, ConfigurationError) as error:
        raise StoreUnavailable(str(error)) from error
    finally:
        await redis.aclose()


def _write_nothing(prefix: str) -> Steps[None]:
    # The command needs memory, a disk, replicas and the permission of a write; it makes no key.
    yield RedisCall(("XADD", f"{{{prefix}}}:probe", "NOMKSTREAM", "*", "b", 1))
