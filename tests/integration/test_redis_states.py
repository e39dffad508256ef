"""The states of a real Redis that pass: queues raise StoreUnavailable with the cause, workers wait
and go on, and the doctor names the state."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.errors import ConfigurationError, StoreUnavailable  # noqa: E402
from fairlead.sharded import Empty  # noqa: E402
from tests.redis_states import (  # noqa: E402
    PASSING,
    DrivenServer,
    driven_server,
    new_password,
    no_permission,
)
from tests.sharded_queues import kinds, queue_on  # noqa: E402
from tests.waiting import until  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("redis_server"),  # skips the tests without Redis
]

states = pytest.mark.parametrize("code", PASSING)


@states
@kinds
async def test_a_queue_raises_the_cause_while_the_state_lasts_and_works_afterwards(
    code: str, kind: str
) -> None:
    with driven_server(code) as (server, client):
        queue = queue_on(server.url, kind)
        kept = await queue.write({"n": 1})
        with PASSING[code](server, client):
            with pytest.raises(StoreUnavailable, match=code):
                await queue.write({"n": 2})
            if code != "OOM":  # readers empty a full server
                with pytest.raises(StoreUnavailable, match=code):
                    await queue.read("g", "c")
        other = await queue.write({"n": 3})
        assert {(await queue.read("g", "c")).id for _ in range(2)} == {kept, other}
        await queue.ack("g", kept, other)
        with pytest.raises(Empty):
            await queue.read("g", "c")
        await queue.close()


@kinds
async def test_an_operator_who_unblocks_a_reader_does_not_end_its_wait(kind: str) -> None:
    with driven_server() as (server, client):
        queue = queue_on(server.url, kind)
        reading = asyncio.create_task(queue.read("g", "c", block=20.0))

        def blocked() -> list[Any]:
            return [one["id"] for one in client.client_list() if "b" in one["flags"]]

        for _ in range(3):
            await until(lambda: bool(blocked()))
            assert client.client_unblock(blocked()[0], error=True) == 1
        written = await queue.write({"n": 1})
        assert (await reading).id == written
        await queue.close()


def without_password(server: DrivenServer, client: Any) -> str:
    """Let the server need no password, and return a URL without one."""
    client.config_set("requirepass", "")
    return f"redis://127.0.0.1:{server.port}/0"


@kinds
async def test_a_password_that_a_queue_does_not_have_is_an_error_with_its_cure(kind: str) -> None:
    with driven_server() as (server, client):
        queue = queue_on(without_password(server, client), kind)
        written = await queue.write({"n": 1})
        with new_password(server, client):
            with suppress(StoreUnavailable, ConfigurationError):
                await queue.len()  # the killed connection may show first
            for call in (lambda: queue.write({"n": 2}), lambda: queue.read("g", "c")):
                with pytest.raises(ConfigurationError, match="check user and password"):
                    await call()
        assert (await queue.read("g", "c")).id == written
        await queue.close()


@kinds
async def test_a_missing_permission_is_an_error_with_its_cure(kind: str) -> None:
    with driven_server() as (server, client):
        queue = queue_on(server.url, kind)
        await queue.write({"n": 1})
        with no_permission(server, client):
            for call in (lambda: queue.write({"n": 2}), lambda: queue.read("g", "c")):
                with pytest.raises(ConfigurationError, match="extend its ACL"):
                    await call()
        await queue.read("g", "c")
        await queue.close()
