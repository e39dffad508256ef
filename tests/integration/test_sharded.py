"""The sharded queue: refused values, the synchronous queue, and how many waiting readers one message
wakes."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import AsyncExitStack
from typing import Any

import pytest

from fairlead.errors import ConfigurationError

redis = pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.sharded import Empty, InvalidMessage, ShardedQueue, SyncShardedQueue, steps
from fairlead.sharded.message import MOST_MESSAGE_BYTES
from tests.sharded_queues import SOON, key_of  # noqa: E402
from tests.waiting import until  # noqa: E402


async def test_bad_writes_are_refused_before_anything_is_written(queue, client) -> None:
    bad: list[dict[str, Any]] = [
        {"values": {}},
        {"values": {"fairlead:key": "x"}},
        {"values": {str(n): n for n in range(1001)}},
        {"values": {"a": 1}, "weight": 0},
        {"values": {"a": 1}, "weight": float("nan")},
        {"values": {"a": 1}, "streams": 0},
        {"values": {"a": 1}, "streams": 4, "streams_per_shard": 5},
        {"values": {"a": 1}, "streams_per_shard": 0},
        {"values": {"a": "\ud800"}},
        {"values": {"\ud800": "a"}},
        {"values": {"a": 1}, "context": {"a": "\ud800"}},
        {"values": {"a": 1}, "shard_key": "\ud800"},
        {"values": {"a": bytes(MOST_MESSAGE_BYTES)}},
    ]
    for arguments in bad:
        with pytest.raises(InvalidMessage):
            await queue.write(**arguments)
    with pytest.raises(InvalidMessage):
        await queue.set_weight("a", -1)
    with pytest.raises(InvalidMessage, match="UTF-8"):
        await queue.read("\ud800", "c")
    with pytest.raises(ConfigurationError):
        await queue.read("", "c")
    assert client.dbsize() == 0
    await queue.write({str(n): n for n in range(1000)})
    assert len((await queue.read("g", "c")).values) == 1000


@pytest.mark.parametrize("kind", [ShardedQueue, SyncShardedQueue])
def test_bad_settings_are_refused(kind, redis_url) -> None:
    with pytest.raises(ConfigurationError) as refused:
        kind("redys://user:secret@host/0", "q")
    assert "secret" not in str(refused.value)
    for wrong in (
        {"reads": "turns"},
        {"ttl": 0},
        {"shrink_after": -1},
        {"max_deliveries": 0},
        {"streams": 4},
    ):
        with pytest.raises(ConfigurationError):
            kind(redis_url, "q", **wrong)
    for name in ("", "a{b}"):
        with pytest.raises(ConfigurationError):
            kind(redis_url, name)
    with pytest.raises(ConfigurationError):
        SyncShardedQueue(redis.Redis(decode_responses=True), "q")


async def test_a_cancelled_read_ends_though_the_client_swallows_the_cancellation(
    redis_url, client
) -> None:
    class Forgetful(redis.asyncio.Redis):
        async def xread(self, *arguments: Any, **more: Any) -> Any:
            try:
                return await super().xread(*arguments, **more)
            except asyncio.CancelledError:
                return {}

    forgetful = Forgetful.from_url(redis_url)
    reading = asyncio.create_task(ShardedQueue(forgetful, "q").read("g", "c", block=3600.0))
    await until(lambda: client.info("clients")["blocked_clients"] == 1)
    reading.cancel()
    done, _ = await asyncio.wait([reading], timeout=SOON)
    assert done and reading.cancelled()
    await forgetful.aclose()


def test_the_synchronous_queue_has_the_same_surface() -> None:
    def surface(kind: type) -> dict[str, list[tuple[str, Any, Any]]]:
        return {
            name: [
                (each.name, each.default, each.kind)
                for each in inspect.signature(function).parameters.values()
            ]
            for name, function in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_") or name == "__init__"
        }

    assert surface(ShardedQueue) == surface(SyncShardedQueue)


@pytest.mark.parametrize("reads", ["streams", "tenants"])
def test_idle_readers_look_through_the_streams_once_for_all_of_them(
    redis_url, client, reads
) -> None:
    queue = SyncShardedQueue(redis_url, "q", streams=500, reads=reads)
    queue.ack("g", queue.read("g", queue.write({"n": 0})).id)
    client.config_resetstat()
    for n in range(20):
        with pytest.raises(Empty):
            queue.read("g", f"c{n}")
    assert client.info("commandstats")["cmdstat_xlen"]["calls"] < 10 * 500
    queue.write({"n": 1})
    assert queue.read("g", "c1").values == {"n": b"1"}


async def test_one_message_makes_two_of_fifty_waiting_readers_look_through_the_streams(
    redis_url, client, monkeypatch
) -> None:
    monkeypatch.setattr(steps, "WAIT_SECONDS", 3600.0)  # no reader wakes by itself
    patient = redis.asyncio.Redis.from_url(redis_url, socket_timeout=None, max_connections=100)
    queue = ShardedQueue(patient, "q", streams=16, streams_per_shard=2)

    def waiting() -> int:
        return int(client.info("clients")["blocked_clients"])

    def calls(command: str) -> int:
        return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])

    async with AsyncExitStack() as stack:
        stack.push_async_callback(patient.aclose)
        readers = [asyncio.create_task(queue.read("g", f"c{n}", block=3600.0)) for n in range(50)]
        await until(lambda: waiting() == 50)
        for left in range(49, 44, -1):
            before = calls("xlen")
            await queue.write({"n": left}, shard_key=key_of(16, 14, 15))
            await until(
                lambda: waiting() == left and sum(reader.done() for reader in readers) == 50 - left
            )
            looked_into = calls("xlen") - before
            # The writer looks into the two streams of its shard; one reader finds the message, the
            # next one finds nothing.
            assert looked_into <= 2 + 16 + 16, f"{looked_into / 16:.1f} passes"
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        assert await queue.pending("g") == 5
