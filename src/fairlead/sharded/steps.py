"""What a sharded queue does, as generators: they say what to ask Redis and are told the answer.

The asynchronous queue and its synchronous twin run the same steps; tests run them one at a time, with anything in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from fairlead.errors import ConfigurationError
from fairlead.sharded import script
from fairlead.sharded.errors import Empty, InvalidMessage, UnknownMessage
from fairlead.sharded.message import Message, SetAside, Value, entry, message, millis, place, set_aside
from fairlead.sharded.script import Script
from fairlead.sharded.settings import Settings
from fairlead.sharded.stats import Stats

WAIT_SECONDS = 2.0
"""A reader waits for so long at a time, and then looks by itself: a client's socket may give up after 5 s."""

MOST_FIELDS = 1000

T = TypeVar("T")


class Run(NamedTuple):
    """Run a script. `key`: the queue's meta."""

    script: Script
    key: str
    arguments: tuple[bytes | str | int | float, ...]


class Wait(NamedTuple):
    """Wait until one of the streams holds an entry after its id, and answer whether it does. By XREAD, which all get that
    wait, without a group: what a reader that dies was told of is told to others too."""

    after: Mapping[str, str]
    millis: int


Steps = Generator[Run | Wait, Any, T]


class QueueSteps:
    """The operations of one queue. For the promises see `ShardedQueue`."""

    def __init__(self, settings: Settings, monotonic: Callable[[], float]) -> None:
        """`monotonic`: seconds on a clock that never steps back."""
        self._settings = settings
        self._monotonic = monotonic
        self._ttl = round(settings.ttl * 1000)
        self._meta = f"{{{settings.name}}}:meta"
        self._notifications = f"{{{settings.name}}}:notifications"

    def write(
        self,
        values: Mapping[str, Value],
        shard_key: str,
        streams: int | None,
        streams_per_shard: int | None,
        deadline: datetime | None,
        weight: float,
    ) -> Steps[str]:
        count, candidates = self._settings.shard(shard_key, streams, streams_per_shard)
        fields = entry(values, shard_key, weight, deadline)
        if len(values) > MOST_FIELDS:
            raise InvalidMessage(f"{len(values)} fields: at most {MOST_FIELDS}; put them into one, as JSON for example")
        stream, at = yield self._run(
            script.WRITE,
            count,
            self._ttl,
            round(self._settings.shrink_after * 1000),
            "" if deadline is None else millis(deadline),
            len(candidates),
            *candidates,
            *fields,
        )
        return f"{stream.decode()}/{at.decode()}"

    def read(self, group: str, consumer: str, block: float, prefer_stream: int | str | None) -> Steps[Message]:
        _named(group, consumer)
        preferred = "" if prefer_stream is None else str(prefer_stream)
        if preferred:
            place(f"{preferred}/0-0")
        until = self._monotonic() + block
        is_woken = False
        while True:
            found = yield self._run(
                script.READ, group, consumer, self._settings.reads, preferred, self._ttl, int(is_woken)
            )
            if found[0] == b"message":
                return message(found[1:])
            if found[0] == b"empty":
                left = until - self._monotonic()
                if left <= 0:
                    raise Empty(f"nothing to read in {self._settings.name}")
                is_woken = yield self._wait(found, min(left, WAIT_SECONDS))

    def ack(self, group: str, ids: Iterable[str]) -> Steps[int]:
        places = [part for id in ids for part in place(id)]
        return int((yield self._run(script.ACK, group, *places)))

    def delete(self, id: str) -> Steps[None]:
        if not (yield self._run(script.DELETE, *place(id))):
            raise UnknownMessage(
                f"message {id} is not in {self._settings.name}: acknowledged, deleted, set aside or expired"
            )

    def stats(self, group: str) -> Steps[Stats]:
        return Stats(*(yield self._run(script.STATS, group)))

    def len(self) -> Steps[int]:
        return (yield from self.stats("")).messages

    def pending(self, group: str) -> Steps[int]:
        return (yield from self.stats(group)).pending

    def reclaim(self, group: str, consumer: str, min_idle: float, count: int) -> Steps[list[Message]]:
        _named(group, consumer)
        now, claimed = yield self._run(
            script.RECLAIM,
            group,
            consumer,
            round(min_idle * 1000),
            count,
            self._settings.max_deliveries,
            self._ttl,
        )
        return [message((stream, at, deliveries, now, fields)) for stream, at, deliveries, fields in claimed]

    def cordon(self, window: float | None, count: int) -> Steps[list[SetAside]]:
        since = "" if window is None else round(window * 1000)
        return [set_aside(copy) for copy in (yield self._run(script.CORDON, since, count, self._ttl))]

    def cordoned(self, count: int) -> Steps[list[SetAside]]:
        return [set_aside(copy) for copy in (yield self._run(script.ASIDE, "cordoned", count))]

    def dead_letters(self, count: int) -> Steps[list[SetAside]]:
        return [set_aside(copy) for copy in (yield self._run(script.ASIDE, "dead", count))]

    def forget_group(self, group: str) -> Steps[int]:
        return int((yield self._run(script.FORGET, group)))

    def set_weight(self, shard_key: str, weight: float | None) -> Steps[None]:
        if weight is not None:
            entry({"": ""}, shard_key, weight, None)
        yield self._run(script.WEIGH, shard_key, "" if weight is None else float(weight), self._ttl)

    def _run(self, wanted: Script, *arguments: bytes | str | int | float) -> Run:
        return Run(wanted, self._meta, arguments)

    def _wait(self, found: list[bytes], seconds: float) -> Wait:
        after = {self._notifications: found[1].decode()}
        if found[2]:
            after[self._settings.name] = found[2].decode()
        return Wait(after, math.ceil(seconds * 1000))


def _named(group: str, consumer: str) -> None:
    if not group or not consumer:
        raise ConfigurationError("a reader needs the name of its group, and one of its own as consumer")
