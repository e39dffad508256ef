"""The operations of a sharded queue as generators: each yields commands for Redis and receives the
responses.

The asynchronous and the synchronous queue run the same steps; tests run them one at a time, with
anything in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import msgspec

from fairlead.errors import ConfigurationError
from fairlead.sharded import script
from fairlead.sharded.details import MOST_DETAILS, Details, details_of
from fairlead.sharded.errors import Empty, InvalidMessage, UnknownMessage
from fairlead.sharded.message import (
    Entry,
    Field,
    Message,
    NewMessage,
    RemovedMessage,
    check_weight,
    entry,
    id_of,
    message,
    position,
    removed_message,
)
from fairlead.sharded.packing import packable, packed_for
from fairlead.sharded.script import Script
from fairlead.sharded.settings import ShardedSettings
from fairlead.sharded.stats import Stats

WAIT_SECONDS = 2.0
"""Seconds of one wait, after which a reader checks the streams without a notification. Some clients
close a socket after 5 s."""

MOST_AT_ONCE = 500
"""Messages that one run of a script writes, reads or ends, so that it does not hold the server for
long."""

MOST_BYTES = 1_000_000
"""Bytes of the messages that one run of a script reads, writes, lists or moves, about."""

_MOST_SECONDS = 1e9
"""Greatest length of a time, in seconds: about 31 years."""

KEYS = (
    "deadlines",
    "lasting",
    "later",
    "later:messages",
    "dead",
    "dead:heads",
    "dead:names",
    "cordoned",
    "weights",
    "groups",
    "notifications",
)
"""Keys of a queue beside its streams and `meta`, without their prefix. See common.lua."""

T = TypeVar("T")


class RunScript(NamedTuple):
    """Run a script. `key`: the queue's key `meta`."""

    script: Script
    key: str
    arguments: tuple[bytes | str | int | float, ...]
    others: tuple[str, ...] = ()
    """The other keys that the script may use, for a cluster: while it moves them to another server,
    it refuses a script as a whole, and never in the middle."""


class WaitForEntry(NamedTuple):
    """Wait until one of the streams gets an entry, and return whether it got one. XREAD without a
    group wakes every reader that waits, so no notification is lost if one of them dies."""

    after: Mapping[str, str]
    """The newest known entry of each stream, by the stream's key; the wait is for a newer one."""
    millis: int


Command = RunScript | WaitForEntry
Steps = Generator[Command, Any, T]


class QueueSteps:
    """The operations of one queue. `ShardedQueue` documents their promises."""

    def __init__(self, settings: ShardedSettings, monotonic: Callable[[], float]) -> None:
        """`monotonic`: seconds on a clock that never steps back."""
        self._monotonic = monotonic
        self._ttl = round(settings.ttl * 1000)
        self._meta = settings.meta
        self._notifications = f"{settings.prefix}notifications"
        self.settings = settings
        self._declared = 0
        self._declare(settings.streams)

    def write(
        self,
        message: NewMessage,
        streams: int | None = None,
        streams_per_shard: int | None = None,
    ) -> Steps[str]:
        """See `ShardedQueue.write`."""
        return (yield from self.write_many([message], streams, streams_per_shard))[0]

    def write_many(
        self,
        messages: Iterable[NewMessage],
        streams: int | None = None,
        streams_per_shard: int | None = None,
    ) -> Steps[list[str]]:
        """See `ShardedQueue.write_many`."""
        entries: list[Entry] = [entry(message) for message in messages]
        shard_keys = {each.shard_key for each in entries}
        shards = {
            key: self.settings.shard(key, streams, streams_per_shard)[1] for key in shard_keys
        }
        if streams is not None and streams > self._declared:
            self._declare(streams)
        count = self.settings.streams if streams is None else streams
        shrink_after = round(self.settings.shrink_after * 1000)
        ids: list[str] = []
        for piece in pieces([size_of(each.fields) for each in entries]):
            some = entries[piece.start : piece.stop]
            of_piece = {key: shards[key] for key in {each.shard_key for each in some}}
            packed = packed_for(of_piece, [packable(each) for each in some])
            written = yield self.run(script.WRITE, count, self._ttl, shrink_after, packed)
            ids += [id_of(*found) for found in written]
        return ids

    def read(
        self, group: str, consumer: str, block: float, prefer_stream: int | str | None
    ) -> Steps[Message]:
        """See `ShardedQueue.read`."""
        return (yield from self.read_many(group, consumer, 1, block, prefer_stream))[0]

    def read_many(
        self,
        group: str,
        consumer: str,
        count: int,
        block: float,
        prefer_stream: int | str | None = None,
    ) -> Steps[list[Message]]:
        """See `ShardedQueue.read_many`."""
        _check_names(group, consumer)
        if count < 1:
            raise InvalidMessage(f"count={count}: 1 or more")
        preferred = "" if prefer_stream is None else str(prefer_stream)
        if preferred:
            position(f"{preferred}/0-0")
        until = self._monotonic() + block
        woken_after = ""
        times_again = 0
        while True:
            found = yield self.read_once(
                group, consumer, count, preferred, woken_after, times_again
            )
            times_again = times_again + 1 if found[0] == b"again" else 0
            if found[0] == b"messages":
                return [_taken(found[1], each) for each in found[2:]]
            if found[0] == b"empty":
                left = until - self._monotonic()
                if left <= 0:
                    raise Empty(f"nothing to read in {self.settings.name}")
                wait = self._waiting(found, left)
                # Treat a reader that has waited until a message for later is due as woken: the
                # first such reader writes the message into a stream, which wakes the others.
                is_woken = (yield wait) or wait.millis < round(min(left, WAIT_SECONDS) * 1000)
                woken_after = _text(found[2]) if is_woken else ""

    def read_once(
        self,
        group: str,
        consumer: str,
        count: int,
        preferred: str = "",
        woken_after: str = "",
        times_again: int = 0,
    ) -> RunScript:
        """Make one pass over the streams; read.lua describes the response. `woken_after`: the
        notification after which the reader waited, or "" if no later one ended its wait.
        `times_again`: how often this scan has returned "again" so far."""
        arguments = (
            group,
            consumer,
            self.settings.reads,
            preferred,
            self._ttl,
            woken_after,
            min(count, MOST_AT_ONCE),
            times_again,
        )
        return RunScript(script.READ, self._meta, arguments, self._keys_for(group))

    def _waiting(self, found: Sequence[Any], seconds: float) -> WaitForEntry:
        """Return the wait after a scan that found nothing, of at most `seconds`."""
        _, now, latest, latest_default, next_due = found
        if next_due:
            seconds = min(seconds, max(0.0, (int(next_due) - int(now)) / 1000))
        after = {self._notifications: _text(latest)}
        if latest_default:
            after[self.settings.name] = _text(latest_default)
        return WaitForEntry(after, max(1, math.ceil(min(seconds, WAIT_SECONDS) * 1000)))

    def ack(self, group: str, ids: Iterable[str]) -> Steps[int]:
        """See `ShardedQueue.ack`."""
        positions = [position(id) for id in ids]
        acknowledged = 0
        for start in range(0, len(positions), MOST_AT_ONCE):
            piece = chain.from_iterable(positions[start : start + MOST_AT_ONCE])
            acknowledged += int((yield self._run_for(group, script.ACK, *piece)))
        return acknowledged

    def extend(self, group: str, consumer: str, ids: Sequence[str]) -> Steps[list[str]]:
        """See `ShardedQueue.extend`."""
        _check_names(group, consumer)
        held: list[str] = []
        for start in range(0, len(ids), MOST_AT_ONCE):
            piece = ids[start : start + MOST_AT_ONCE]
            positions = [part for id in piece for part in position(id)]
            replies = yield self.run(script.EXTEND, group, consumer, *positions)
            held += [id for id, is_held in zip(piece, replies, strict=True) if is_held]
        return held

    def nack(self, group: str, consumer: str, ids: Sequence[str], delay: float) -> Steps[list[str]]:
        """See `ShardedQueue.nack`."""
        _check_names(group, consumer)
        _check_seconds("delay", delay)
        held: list[str] = []
        done = 0
        while done < len(ids):
            piece = ids[done : done + MOST_AT_ONCE]
            positions = [part for id in piece for part in position(id)]
            replies = yield self._run_for(
                group,
                script.RELEASE,
                consumer,
                self._ttl,
                round(delay * 1000),
                self.settings.max_deliveries,
                *positions,
            )
            held += [id for id, was_held in zip(piece, replies, strict=False) if was_held]
            done += len(replies)
        return held

    def delete(self, id: str) -> Steps[None]:
        """See `ShardedQueue.delete`."""
        if not (yield self.run(script.DELETE, *position(id))):
            raise UnknownMessage(
                f"message {id} is not in {self.settings.name}: acknowledged, deleted, removed or"
                " expired"
            )

    def stats(self, group: str) -> Steps[Stats]:
        """See `ShardedQueue.stats`."""
        found = yield self._run_for(group, script.STATS)
        *counts, oldest = found
        return msgspec.convert([*counts, None if oldest == b"" else int(oldest) / 1000], Stats)

    def details(self, group: str, count: int) -> Steps[Details]:
        """See `ShardedQueue.details`."""
        if not 1 <= count <= MOST_DETAILS:
            raise InvalidMessage(f"count {count!r}: use 1 to {MOST_DETAILS}")
        return details_of((yield self._run_for(group, script.DETAILS, count)))

    def len(self) -> Steps[int]:
        """See `ShardedQueue.len`."""
        return (yield from self.stats("")).messages

    def pending(self, group: str) -> Steps[int]:
        """See `ShardedQueue.pending`."""
        return (yield from self.stats(group)).pending

    def reclaim(
        self, group: str, consumer: str, min_idle: float, count: int
    ) -> Steps[list[Message]]:
        """See `ShardedQueue.reclaim`."""
        _check_names(group, consumer)
        _check_seconds("min_idle", min_idle)
        found: list[Message] = []
        left: int | str = ""
        began = b""
        while len(found) < count and left != 0:
            now, claimed, left = yield self._run_for(
                group,
                script.RECLAIM,
                consumer,
                round(min_idle * 1000),
                count - len(found),
                self.settings.max_deliveries,
                left,
                began,
            )
            began = began or now
            found += [_claimed(now, each) for each in claimed]
        return found

    def cordon(self, window: float | None, count: int) -> Steps[list[RemovedMessage]]:
        """See `ShardedQueue.cordon`."""
        if window is not None:
            _check_seconds("window", window)
        since = "" if window is None else round(window * 1000)
        found: list[RemovedMessage] = []
        more = 1
        while more and len(found) < count:
            more, *copies = yield self.run(script.CORDON, since, count - len(found))
            found += map(removed_message, copies)
        return found

    def cordoned(self, count: int) -> Steps[list[RemovedMessage]]:
        """See `ShardedQueue.cordoned`."""
        found: list[RemovedMessage] = []
        after = ""
        while len(found) < count:
            wanted = min(MOST_AT_ONCE, count - len(found))
            entries = yield self.run(script.CORDONED, after, wanted)
            if not entries:
                break
            found += map(removed_message, entries)
            after = found[-1].position
        return found

    def drop_group(self, group: str) -> Steps[int]:
        """See `ShardedQueue.drop_group`."""
        dropped, stream = 0, 0
        while stream >= 0:
            count, stream = yield self._run_for(group, script.DROP_GROUP, stream)
            dropped += count
        return dropped

    def set_weight(self, shard_key: str, weight: float | None) -> Steps[None]:
        """See `ShardedQueue.set_weight`."""
        if weight is not None:
            check_weight(weight)
        yield self.run(script.WEIGH, shard_key, "" if weight is None else float(weight), self._ttl)

    def run(self, wanted: Script, *arguments: Field) -> RunScript:
        """Return the command that runs a script on this queue."""
        return RunScript(wanted, self._meta, arguments, self._others)

    def _run_for(self, group: str, wanted: Script, *arguments: Field) -> RunScript:
        """Return the command that runs a script for a group, its first argument."""
        return RunScript(wanted, self._meta, (group, *arguments), self._keys_for(group))

    def _declare(self, streams: int) -> None:
        """Note the keys that scripts may use while the queue has this number of streams."""
        self._declared = streams
        own = [*KEYS, *(f"s{stream}" for stream in range(streams))]
        self._others = (
            self.settings.name,
            *(f"{self.settings.prefix}{last}" for last in own),
        )
        self._others_for: dict[str, tuple[str, ...]] = {}

    def _keys_for(self, group: str) -> tuple[str, ...]:
        """Return the keys that a read for the group may use."""
        found = self._others_for.get(group)
        if found is None:
            kinds = ("waiting", "tenants", "passes", "returned", "consumers")
            own = (f"{self.settings.prefix}{kind}:{group}" for kind in kinds)
            found = self._others_for[group] = (*self._others, *own)
        return found


def _taken(now: bytes, found: Sequence[Any]) -> Message:
    """Return a message that read.lua has claimed at `now` (milliseconds since 1970)."""
    stream, at, fields, *deliveries = found
    return message((stream, at, *(deliveries or [1]), now, fields))


def _claimed(now: bytes, found: Sequence[Any]) -> Message:
    stream, at, deliveries, fields = found
    return message((stream, at, deliveries, now, fields))


def size_of(fields: Sequence[bytes | str]) -> int:
    """Return the bytes of fields and values, about."""
    return sum(map(len, fields))


def pieces(sizes: Sequence[int]) -> Iterator[range]:
    """Divide things of these sizes (bytes) into pieces that one run of a script takes."""
    start = size = 0
    for i, each in enumerate(sizes):
        if i > start and (i - start == MOST_AT_ONCE or size + each > MOST_BYTES):
            yield range(start, i)
            start, size = i, 0
        size += each
    if start < len(sizes):
        yield range(start, len(sizes))


def _check_names(group: str, consumer: str) -> None:
    if not group or not consumer:
        raise ConfigurationError(
            "a reader needs a group and a consumer: the name of its group, and its own name"
        )


def _check_seconds(what: str, seconds: float) -> None:
    if not 0 <= seconds <= _MOST_SECONDS:
        raise InvalidMessage(f"{what}={seconds}: 0 s or more, and at most {_MOST_SECONDS:.0e} s")


def _text(value: bytes | int) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
