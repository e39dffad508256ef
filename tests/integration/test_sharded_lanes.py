"""The priorities of a queue, and waits that claim the next message: no message may stay unread while
every reader waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

redis = pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.sharded.lanes import Delivery, Lanes  # noqa: E402
from fairlead.sharded.message import Entry  # noqa: E402
from fairlead.sharded.running import run  # noqa: E402
from fairlead.sharded.settings import ShardedSettings  # noqa: E402
from tests.sharded_queues import SOON  # noqa: E402

GROUP = "workers"
LONG = 600_000  # milliseconds


class Party:
    """One process that uses a queue: a connection, and the lanes that the process knows."""

    def __init__(self, url: str, name: str, streams: int = 4) -> None:
        self.redis = redis.Redis.from_url(url)
        self.name = name
        self.lanes = Lanes(
            ShardedSettings("q", "tenants", streams, 2, 3600.0, 10.0, 5), time.monotonic
        )

    def do(self, steps: Any) -> Any:
        return run(self.redis, "q", steps)

    def write(self, *numbers: int, priority: int = 5, key: str = "a", at: int | str = "") -> None:
        entries = [
            Entry(("fairlead:key", key, "n", str(n)), key, at, f"ticket {n}") for n in numbers
        ]
        self.do(self.lanes.at(priority).put(entries))

    def read_once(self, room: int = 100) -> tuple[list[Delivery], Any]:
        return self.do(self.lanes.read_once(GROUP, self.name, lambda priority: room))

    def wait(self, empty: Any, millis: int | None = None) -> list[Delivery]:
        """Wait for a message; `millis` (milliseconds) replaces the two seconds after which every
        reader looks by itself."""
        wait = empty.wait if millis is None else empty.wait._replace(millis=min(millis, LONG))
        return self.do(self.lanes.wait(GROUP, self.name, empty._replace(wait=wait)))

    def waits(self, pool: ThreadPoolExecutor, is_long: bool = True) -> Future[list[Delivery]]:
        """Look, find nothing and wait; if `is_long`, wait so long that only a write can wake the
        reader."""
        before = blocked(self.redis)
        while True:
            found, empty = self.read_once()
            assert not found
            answer = pool.submit(self.wait, empty, LONG if is_long else None)
            until(lambda: answer.done() or blocked(self.redis) > before)
            if not answer.done():
                return answer
            assert answer.result() == []  # an earlier notification woke the reader


def blocked(client: Any) -> int:
    return int(client.info("clients")["blocked_clients"])


def until(is_so: Any) -> None:
    end = time.monotonic() + SOON
    pause = threading.Event()
    while not is_so():
        assert time.monotonic() < end
        pause.wait(0.002)


def numbers(found: list[Delivery]) -> list[int]:
    return [int(delivery.message.values["n"]) for delivery in found]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as found:
        yield found


@pytest.fixture
def parties(redis_url: str, pool: ThreadPoolExecutor) -> Iterator[list[Party]]:
    """Close all parties before the pool, which waits for its threads."""
    found = [Party(redis_url, f"p{n}") for n in range(4)]
    yield found
    # Unblock waiting readers, so that their threads can end.
    for client in found[0].redis.client_list():
        found[0].redis.client_unblock(client["id"], error=True)
    for party in found:
        party.redis.close()


def test_a_better_priority_is_read_first_and_one_without_room_not_at_all(parties) -> None:
    writer, reader, *_ = parties
    writer.write(1, 2, 3, priority=9)
    writer.write(4, 5, priority=0)
    found, _ = (
        reader.do(reader.lanes.read_once(GROUP, "r", lambda priority: {0: 1, 9: 5}[priority])),
        None,
    )
    assert numbers(found[0]) == [4], "lane 0 may have more messages, so lane 9 is not read"
    found = reader.do(reader.lanes.read_once(GROUP, "r", lambda priority: {0: 0, 9: 2}[priority]))
    # The key has two streams, whose order is no promise.
    first = {*numbers(found[0])}
    assert len(first) == 2 and first < {1, 2, 3} and not found[1].is_whole
    assert numbers(reader.read_once()[0]) == [5, *({1, 2, 3} - first)]


def test_one_of_the_waiting_readers_gets_the_message_and_the_others_wait_on(parties, pool) -> None:
    writer, *readers = parties
    writer.write(0)
    readers[0].read_once()
    answers = [reader.waits(pool) for reader in readers]
    writer.write(1)
    until(lambda: any(answer.done() for answer in answers))
    (given,) = [answer for answer in answers if answer.done()]
    assert numbers(given.result()) == [1]
    assert blocked(writer.redis) == 2


def test_a_message_written_between_a_readers_check_and_its_wait_is_delivered_at_once(
    parties,
) -> None:
    writer, reader, *_ = parties
    writer.write(0)
    reader.read_once()
    _, empty = reader.read_once()
    writer.write(1)
    assert numbers(reader.wait(empty, LONG)) == [1]


def test_the_first_message_of_an_unknown_priority_wakes_a_reader(parties, pool) -> None:
    writer, reader, *_ = parties
    writer.write(0)
    reader.read_once()
    answer = reader.waits(pool)
    writer.write(1, priority=0)
    assert answer.result(SOON) == []
    assert numbers(reader.read_once()[0]) == [1]


def test_the_first_message_of_a_new_queue_wakes_a_reader(parties, pool) -> None:
    writer, reader, *_ = parties
    answer = reader.waits(pool)
    writer.write(1)
    assert answer.result(SOON) == []
    assert numbers(reader.read_once()[0]) == [1]


def test_a_message_in_a_new_stream_wakes_a_reader(parties, pool, redis_url) -> None:
    writer, reader, *_ = parties
    writer.write(0)
    reader.read_once()
    answer = reader.waits(pool)
    grown = Party(redis_url, "grown", streams=64)
    grown.write(*range(1, 30))
    answer.result(SOON)
    left = numbers(answer.result())
    while found := reader.read_once()[0]:
        left += numbers(found)
    assert sorted(left) == list(range(1, 30))
    grown.redis.close()


def test_a_message_for_later_wakes_readers_that_would_sleep_longer_and_comes_at_its_time(
    parties, pool
) -> None:
    writer, reader, *_ = parties
    writer.write(0)
    reader.read_once()
    answer = reader.waits(pool)
    writer.write(1, at=round(time.time() * 1000) + 300)
    assert answer.result(SOON) == []
    found, empty = reader.read_once()
    assert not found and empty.wait.millis <= 301
    reader.wait(empty)
    until(lambda: bool(found) or found.extend(reader.read_once()[0]) or bool(found))
    assert numbers(found) == [1] and time.time() * 1000 >= int(
        found[0].message.id.split("/")[1].split("-")[0]
    )


def test_a_reader_can_ask_for_messages_whose_delivery_was_lost(parties) -> None:
    writer, reader, other, *_ = parties
    writer.write(1, 2, 3, 4)
    (known, *_), _ = reader.read_once(room=2)
    other.read_once(room=1)
    lost = reader.do(reader.lanes.at(5).held(GROUP, reader.name, [known.message.id]))
    assert len(lost) == 1 and lost[0].deliveries == 1
    assert lost[0].id != known.message.id


def test_a_stream_that_expires_while_a_reader_waits_is_created_again(parties, pool) -> None:
    writer, reader, *_ = parties
    writer.write(0)
    reader.read_once()
    _, empty = reader.read_once()
    reader.wait(empty, 1)
    for key in writer.redis.keys("{q}:5:s*"):
        writer.redis.delete(key)
    assert reader.wait(empty, LONG) == [], "the reader finds a stream missing and does not raise"
    answer = reader.waits(pool)
    writer.write(1)
    assert numbers(answer.result(SOON)) == [1]
