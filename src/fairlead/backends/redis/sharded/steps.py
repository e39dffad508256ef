"""The operations of a sharded queue as generators: each yields commands for Redis and receives the
responses.

The asynchronous and the synchronous queue run the same steps; tests run them one at a time, with
anything in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from fairlead.backends.redis.sharded import script
from fairlead.backends.redis.sharded.errors import Empty, InvalidMessage, UnknownMessage
from fairlead.backends.redis.sharded.message import (
    ClaimEnd,
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
from fairlead.backends.redis.sharded.script import Script
from fairlead.backends.redis.sharded.settings import ShardedSettings
from fairlead.backends.redis.sharded.stats import Stats
from fairlead.errors import ConfigurationError

WAIT_SECONDS = 2.0
"""Seconds of one wait, after which a reader checks the streams without a notification. Some clients
close a socket after 5 s."""

MOST_AT_ONCE = 500
"""Messages that one run of a script writes, reads or ends, so that it does not hold the server for
long."""

MOST_BYTES = 1_000_000
"""Bytes of the messages that one run of a script writes, lists or moves, about, so that it neither
holds the server for long nor takes much of its memory."""

KEYS = (
    "deadlines",
    "once",
    "lasting",
    "later",
    "later:messages",
    "dead",
    "dead:heads",
    "cordoned",
    "weights",
    "groups",
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


class RedisCall(NamedTuple):
    """Run one command of Redis."""

    arguments: tuple[bytes | str | int | float, ...]
    is_relied_on: bool = False
    """Whether replicas should confirm the command, whose second argument is then its key."""


class ReadGroup(NamedTuple):
    """Wait until one of the streams has a message, and claim it as the group's consumer. Return
    key, entry and fields of each claimed message, at most one a stream; return None if a stream or
    its group is missing."""

    group: str
    consumer: str
    keys: Sequence[str]
    millis: int


Command = RunScript | WaitForEntry | RedisCall | ReadGroup
Steps = Generator[Command, Any, T]


class QueueSteps:
    """The operations of one queue. `ShardedQueue` documents their promises."""

    def __init__(self, settings: ShardedSettings, monotonic: Callable[[], float]) -> None:
        """`monotonic`: seconds on a clock that never steps back."""
        self._monotonic = monotonic
        self._ttl = round(settings.ttl * 1000)
        self._meta = settings.meta
        self._notifications = f"{{{settings.name}}}:notifications"
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
        entries = [entry(message) for message in messages]
        return [
            id_of(*found) for found in (yield from self.put(entries, streams, streams_per_shard))
        ]

    def put(
        self,
        entries: Sequence[Entry],
        streams: int | None = None,
        streams_per_shard: int | None = None,
    ) -> Steps[list[tuple[bytes | None, bytes]]]:
        """Write entries. Return the stream and id of each, or None and the name or mark of the
        earlier message that keeps the entry from being written."""
        shards = [
            self.settings.shard(each.shard_key, streams, streams_per_shard) for each in entries
        ]
        if streams is not None and streams > self._declared:
            self._declare(streams)
        replies: list[tuple[bytes | None, bytes]] = []
        for piece in _pieces(zip(entries, shards, strict=True), lambda pair: pair[0]):
            arguments: list[Field] = []
            for each, (_, candidates) in piece:
                arguments += (
                    each.at,
                    each.ticket,
                    each.once,
                    each.unique,
                    each.window,
                    each.name,
                    len(candidates),
                )
                arguments += candidates
                arguments.append(len(each.fields))
                arguments += each.fields
            shrink_after = round(self.settings.shrink_after * 1000)
            count = piece[0][1][0]
            replies += yield self.run(
                script.WRITE, count, self._ttl, shrink_after, len(piece), *arguments
            )
        return replies

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
                return [taken(found[1], each) for each in found[3:]]
            if found[0] == b"empty":
                left = until - self._monotonic()
                if left <= 0:
                    raise Empty(f"nothing to read in {self.settings.name}")
                wait = self.waiting(found, left)
                # Treat a reader that has waited until a message for later is due as woken: the
                # first such reader writes the message into a stream, which wakes the others.
                is_woken = (yield wait) or wait.millis < round(min(left, WAIT_SECONDS) * 1000)
                woken_after = _text(found[3]) if is_woken else ""

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

    @property
    def notifier(self) -> str:
        """The key of the stream that wakes one of the readers of this section of the queue."""
        return f"{self.settings.prefix}notifier"

    def streams(self, count: int) -> list[str]:
        """Return the keys of the first `count` streams."""
        return [f"{self.settings.prefix}s{stream}" for stream in range(count)]

    def prepare(self, group: str) -> Steps[None]:
        """Create the group in every stream, so that a reader can wait for all of them at once."""
        yield self.run(script.PREPARE, group, self._ttl)

    def waiting(self, found: Sequence[Any], seconds: float) -> WaitForEntry:
        """Return the wait after a scan that found nothing, of at most `seconds`."""
        _, now, _, latest, latest_default, next_due, _ = found
        if next_due:
            seconds = min(seconds, max(0.0, (int(next_due) - int(now)) / 1000))
        after = {self._notifications: _text(latest)}
        if latest_default:
            after[self.settings.name] = _text(latest_default)
        return WaitForEntry(after, max(1, math.ceil(min(seconds, WAIT_SECONDS) * 1000)))

    def ack(self, group: str, ids: Iterable[str]) -> Steps[int]:
        """See `ShardedQueue.ack`."""
        positions = [part for id in ids for part in position(id)]
        return int((yield self._run_for(group, script.ACK, *positions)))

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

    def held(self, group: str, consumer: str, known: Iterable[str]) -> Steps[list[Message]]:
        """Return the messages that the consumer holds without knowing, because the responses to its
        reads were lost. `known`: the ids that it knows."""
        positions = [part for id in known for part in position(id)]
        now, found = yield self.run(script.HELD, group, consumer, *positions)
        return [
            message((stream, at, deliveries, now, fields))
            for stream, at, deliveries, fields in found
        ]

    def finish(self, group: str, consumer: str, finishes: Sequence[ClaimEnd]) -> Steps[list[bool]]:
        """End claims, and return for each whether it still belonged to this consumer; other claims
        stay as they are."""
        replies: list[bool] = []
        for piece in _pieces(finishes, lambda end: end.entry):
            arguments: list[Field] = []
            for id, how, each in piece:
                arguments += (*position(id), how)
                if how == "later":
                    arguments += (each.at, each.ticket)
                if how in ("later", "again"):
                    _, candidates = self.settings.shard(each.shard_key, None, None)
                    arguments += (len(candidates), *candidates)
                if how != "done":
                    arguments += (len(each.fields), *each.fields)
            streams = self.settings.streams
            done = yield self.run(
                script.FINISH, group, consumer, self._ttl, streams, len(piece), *arguments
            )
            replies += map(bool, done)
        return replies

    def nack(self, group: str, consumer: str, ids: Sequence[str], delay: float) -> Steps[list[str]]:
        """See `ShardedQueue.nack`."""
        _check_names(group, consumer)
        if not 0 <= delay < math.inf:
            raise InvalidMessage(f"delay={delay}: 0 s or more")
        held: list[str] = []
        for start in range(0, len(ids), MOST_AT_ONCE):
            piece = ids[start : start + MOST_AT_ONCE]
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
            held += [id for id, was_held in zip(piece, replies, strict=True) if was_held]
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
        now, claimed = yield self._run_for(
            group,
            script.RECLAIM,
            consumer,
            round(min_idle * 1000),
            count,
            self.settings.max_deliveries,
        )
        return [
            message((stream, at, deliveries, now, fields))
            for stream, at, deliveries, fields in claimed
        ]

    def cordon(self, window: float | None, count: int) -> Steps[list[RemovedMessage]]:
        """See `ShardedQueue.cordon`."""
        since = "" if window is None else round(window * 1000)
        return [removed_message(copy) for copy in (yield self.run(script.CORDON, since, count))]

    def cordoned(self, count: int) -> Steps[list[RemovedMessage]]:
        """See `ShardedQueue.cordoned`."""
        return (yield from self._removed("cordoned", "", count))

    def dead_letters(self, count: int, after: str = "") -> Steps[list[RemovedMessage]]:
        """See `ShardedQueue.dead_letters`."""
        return (yield from self._removed("dead", after, count))

    def _removed(self, what: str, after: str, count: int) -> Steps[list[RemovedMessage]]:
        """Return removed messages in pages of about `MOST_BYTES`."""
        found: list[RemovedMessage] = []
        page = 10
        while len(found) < count:
            wanted = min(page, count - len(found))
            entries = yield self.run(script.REMOVED, what, after, wanted)
            found += map(removed_message, entries)
            if len(entries) < wanted:
                break
            after = found[-1].position
            size = sum(len(field) for _, flat in entries for field in flat)
            page = max(1, min(MOST_AT_ONCE, MOST_BYTES * wanted // size))
        return found

    def marked(self, marks: Sequence[str]) -> Steps[list[bool]]:
        """Return for each mark whether a message with it is in the queue."""
        found = yield RedisCall(("SMISMEMBER", f"{self.settings.prefix}once", *marks))
        return [bool(is_there) for is_there in found]

    def unfinished(self, beginning: str) -> Steps[tuple[int, int]]:
        """Count unfinished messages at one moment: waiting, claimed and retried ones together, and
        dead letters. `beginning`: the start of the tickets of retries."""
        messages, retries, dead = yield self.run(script.UNFINISHED, beginning)
        return messages + retries, dead

    def has_unfinished(self, beginning: str) -> Steps[bool]:
        """Return whether `unfinished` would count a message. Reads no retries but the first, and
        messages for later that come before it."""
        messages, retries, _ = yield self.run(script.UNFINISHED, beginning, 1)
        return bool(messages + retries)

    def drop_group(self, group: str) -> Steps[int]:
        """See `ShardedQueue.drop_group`."""
        return int((yield self._run_for(group, script.DROP_GROUP)))

    def set_weight(self, shard_key: str, weight: float | None) -> Steps[None]:
        """See `ShardedQueue.set_weight`."""
        if weight is not None:
            check_weight(weight)
        yield self.run(script.WEIGH, shard_key, "" if weight is None else float(weight), self._ttl)

    def weights(self) -> Steps[dict[str, float]]:
        """Return the weights that were set, by shard key."""
        found = yield RedisCall(("HGETALL", f"{self.settings.prefix}weights"))
        return {key.decode(): float(weight) for key, weight in found.items()}

    def set_weights(self, weights: Mapping[str, float]) -> Steps[None]:
        """Replace all weights that were set by these, by shard key."""
        yield self.run(
            script.REWEIGH, self._ttl, *(part for each in sorted(weights.items()) for part in each)
        )

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
            self._notifications,
            f"{{{self.settings.name}}}:dead:names",
            *(f"{self.settings.prefix}{last}" for last in own),
        )
        self._others_for: dict[str, tuple[str, ...]] = {}

    def _keys_for(self, group: str) -> tuple[str, ...]:
        """Return the keys that a read for the group may use."""
        found = self._others_for.get(group)
        if found is None:
            kinds = ("waiting", "tenants", "passes", "returned")
            own = (f"{self.settings.prefix}{kind}:{group}" for kind in kinds)
            found = self._others_for[group] = (*self._others, *own)
        return found


def taken(now: bytes, found: Sequence[Any]) -> Message:
    """Return a message that read.lua has claimed at `now` (milliseconds since 1970)."""
    stream, at, fields, *deliveries = found
    return message((stream, at, *(deliveries or [1]), now, fields))


def waiting(wait: WaitForEntry) -> Steps[bool]:
    """Run one wait, and return whether an entry came."""
    return bool((yield wait))


def _pieces(values: Iterable[T], entry_of: Callable[[T], Entry]) -> Iterator[list[T]]:
    """Yield all values in lists, each for one run of a script: of at most MOST_AT_ONCE values, and
    of entries of at most MOST_BYTES unless there is only one."""
    piece: list[T] = []
    size = 0
    for value in values:
        bytes_of_it = entry_of(value).size
        if piece and (len(piece) == MOST_AT_ONCE or size + bytes_of_it > MOST_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(value)
        size += bytes_of_it
    if piece:
        yield piece


def _check_names(group: str, consumer: str) -> None:
    if not group or not consumer:
        raise ConfigurationError(
            "a reader needs a group and a consumer: the name of its group, and its own name"
        )


def _text(value: bytes | int) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
