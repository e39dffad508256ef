"""Errors of Redis name host and port of the server, and no password."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.sharded import ShardedQueue, SyncShardedQueue
from services.process import free_port

redis = pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.sharded.clients import has_tls  # noqa: E402

pytestmark = pytest.mark.asyncio

QUICK = "socket_connect_timeout=1&socket_timeout=1"


@pytest.fixture
def port() -> int:
    """Port on which nothing listens."""
    return free_port()


@pytest.mark.parametrize(
    ("form", "address"),
    [
        ("redis://:Gh7mark@127.0.0.1:{port}/0", "127.0.0.1:{port}"),
        ("redis://127.0.0.1:{port}/0?password=Gh7mark", "127.0.0.1:{port}"),
        ("rediss://user:Gh7mark@127.0.0.1:{port}", "127.0.0.1:{port}"),
        ("unix://:Gh7mark@{folder}/redis.sock", "{folder}/redis.sock"),
        ("redis+sentinel://:Gh7mark@127.0.0.1:{port}/shop", "127.0.0.1:{port}"),
        ("redis+cluster://:Gh7mark@127.0.0.1:{port},localhost:{port}", "127.0.0.1:{port}"),
    ],
)
async def test_an_outage_names_the_server(
    form: str, address: str, port: int, tmp_path: Path
) -> None:
    url, address = (
        form.format(port=port, folder=tmp_path),
        address.format(port=port, folder=tmp_path),
    )
    url += f"{'&' if '?' in url else '?'}{QUICK}"
    shown = []
    queue, sync_queue = ShardedQueue(url, "shop"), SyncShardedQueue(url, "shop")
    with pytest.raises(StoreUnavailable) as caught:
        await queue.len()
    shown += [str(caught.value), *traceback.format_exception(caught.value)]
    assert str(caught.value).startswith(address)
    with pytest.raises(StoreUnavailable) as caught:
        sync_queue.len()
    shown += [str(caught.value), *traceback.format_exception(caught.value)]
    assert str(caught.value).startswith(address)
    await queue.close()
    sync_queue.close()
    assert "Gh7mark" not in "\n".join(shown)


async def test_a_refused_login_names_the_server(redis_url: str) -> None:
    port = urlsplit(redis_url).port
    queue = SyncShardedQueue(f"redis://:Gh7mark@127.0.0.1:{port}/0", "shop")
    with pytest.raises(ConfigurationError, match=f"^127.0.0.1:{port}: Redis refused") as caught:
        queue.len()
    assert "Gh7mark" not in "".join(traceback.format_exception(caught.value))
    queue.close()


async def test_a_client_of_the_caller_is_named_by_its_server(port: int) -> None:
    for client in (redis.Redis(port=port), redis.Redis(host="127.0.0.1", port=port)):
        with pytest.raises(StoreUnavailable, match=f"(localhost|127.0.0.1):{port}: Redis does not"):
            SyncShardedQueue(client, "shop").len()
        client.close()


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
@pytest.mark.parametrize("kind", [ShardedQueue, SyncShardedQueue])
@pytest.mark.parametrize(
    "form", ["{}://localhost", "{}+cluster://localhost", "{}+sentinel://localhost/shop"]
)
async def test_every_client_says_whether_it_uses_tls(form: str, kind: Any, scheme: str) -> None:
    """By this, an error of a closed connection names the certificate."""
    queue = kind(form.format(scheme), "q")
    assert has_tls(queue._redis) == (scheme == "rediss")
