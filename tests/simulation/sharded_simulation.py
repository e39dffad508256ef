"""Readers and writers of a sharded queue that send one command at a time, in an order drawn from a
seed.

The real steps and scripts run on a real Redis. A waiting reader is not blocked; the simulation
checks instead whether its XREAD would return now. Readers, reclaimers and writers may die between
two commands, before or after the server has executed one; the client of a writer writes again. Time
passes for the dead only: their messages become old, those of the living do not. A seed always makes
the same schedule, because nothing depends on the clock.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from redis import Redis
from redis.exceptions import NoScriptError, ResponseError

from fairlead.sharded import Empty, Message, NewMessage
from fairlead.sharded.dead_letters import DeadLetterSteps
from fairlead.sharded.settings import ShardedSettings
from fairlead.sharded.steps import QueueSteps, RunScript, Steps, WaitForEntry

GROUP = "g"
MIN_IDLE = 3600.0
LINES_SHOWN = 30
PAST = timedelta(hours=-1)


class Broken(Exception):
    """Raised for a broken promise, with the schedule and its last steps."""


class Reader:
    """One consumer, at one point of its steps."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps: Steps[Any] | None = None
        self.next: RunScript | WaitForEntry | None = None
        self.holds: set[str] = set()

    @property
    def waits(self) -> bool:
        return isinstance(self.next, WaitForEntry)


class Simulation:
    """One schedule. Raises Broken as soon as a promise is broken."""

    def __init__(self, seed: int, redis: Redis, steps: type[QueueSteps] = QueueSteps) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self._redis = redis
        self._name = f"sim{seed}"
        self._settings = ShardedSettings(
            self._name,
            reads=self.chance.choice(("streams", "tenants")),
            streams=4,
            streams_per_shard=1,
            ttl=1000.0,
            shrink_after=0.0,
            max_deliveries=self.chance.choice((2, 50)),
        )
        self._queue = steps(self._settings, time.monotonic)
        other: Any = "streams" if self._settings.reads == "tenants" else "tenants"
        self._other = steps(replace(self._settings, reads=other), time.monotonic)
        self._is_mixed = self.chance.random() < 0.3
        """Whether some readers read by streams and others by tenants."""
        self._streams = 4
        self._named = 0
        self.readers: list[Reader] = [self._reader() for _ in range(self.chance.randint(1, 4))]
        self.waiting: set[str] = set()
        """Messages written and not yet delivered."""
        self.late: set[str] = set()
        """Messages written after their deadline."""
        self.claimed: set[str] = set()
        """Messages that the server has delivered and that are not acknowledged."""
        self.done: Counter[str] = Counter()
        self.dead: set[str] = set()
        self.written: set[str] = set()
        self.later: dict[str, str] = {}
        """Tickets of unread messages for later, by the value of their field."""
        self.due: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.lines: deque[str] = deque(maxlen=LINES_SHOWN)

    def run(self, count: int = 40) -> None:
        kinds = [
            (self._write, 4.0),
            (self._write_many, 1.0),
            (self._write_plain, 1.0),
            (self._write_late, 0.5),
            (self._write_again, 0.3),
            (self._write_for_later, 0.5),
            (self._fall_due, 0.5),
            (self._step, 10.0),
            (self._ack, 3.0),
            (self._die, 1.0),
            (self._reclaim, 1.0),
            (self._extend, 0.5),
            (self._delete, 0.3),
            (self._resize, 1.0),
            (self._flush_scripts, 0.1),
            (self._cordon, 0.3),
            (self._ack_unread, 0.3),
            (self._wait_long, 0.3),
            (self._count, 0.3),
        ]
        weights = [weight * self.chance.choice((0.2, 1.0, 3.0)) for _, weight in kinds]
        for _ in range(count):
            step = self.chance.choices(kinds, weights)[0][0]
            step()
            self.counts[step.__name__] += 1
            self._check_waits()
        self._finish()

    # steps ----------------------------------------------------------------------------------------

    def _write(self, key: str | None = None) -> None:
        self._written(
            self._do(self._queue.write(NewMessage({"n": 1}, key or self._key()), self._streams, 1))
        )

    def _write_many(self) -> None:
        news = [NewMessage({"n": 1}, self._key()) for _ in range(self.chance.choice((2, 5, 12)))]
        for id in self._do(self._queue.write_many(news, self._streams, 1)):
            self._written(id)

    def _write_again(self) -> None:
        """Lose the response, so that the Redis client repeats the write: the writer knows one of the two
        messages."""
        key = self._key()
        self._write(key)
        self._write(key)

    def _write_for_later(self) -> None:
        text = f"for later {self.chance.random()}"
        at = datetime.now(UTC) - PAST
        id = self._do(
            self._queue.write(NewMessage({"n": text}, self._key(), at=at), self._streams, 1)
        )
        self.later[text] = id.partition("/")[2]
        self.lines.append(f"wrote {id}")

    def _fall_due(self) -> None:
        """Make one delayed message due and wake the readers that wait for it, because their clocks do
        not run."""
        if self.later:
            self._make_due(self.chance.choice(list(self.later)))

    def _write_plain(self) -> None:
        """Write as a producer of the plain stream does."""
        self._written(f"default/{self._redis.xadd(self._name, {'n': 1}).decode()}")

    def _write_late(self) -> None:
        due = datetime.now(UTC) + PAST
        id = self._do(self._queue.write(NewMessage({"n": 1}, self._key(), due), self._streams, 1))
        self.late.add(id)
        self.lines.append(f"wrote {id}, past its deadline")

    def _step(self) -> None:
        """Do one command of one reader, or begin its read."""
        reader = self.chance.choice(self.readers)
        if reader.next is None:
            if len(reader.holds) < 3:
                preferred = self.chance.choice((None, None, self.chance.randrange(8)))
                count = self.chance.choice((1, 1, 3))
                is_other = self._is_mixed and self.chance.random() < 0.5
                queue = self._other if is_other else self._queue
                reader.steps = queue.read_many(GROUP, reader.name, count, 1e6, preferred)
                reader.next = next(reader.steps)
                self.lines.append(f"{reader.name} begins to read")
            return
        if isinstance(reader.next, WaitForEntry):
            if self._would_wake(reader.next):
                self._send(reader, True)
            elif self.chance.random() < 0.1:
                self._send(reader, False)  # its wait is over, so the reader checks by itself
            return
        self._send(reader, self._execute(reader.next))

    def _ack(self) -> None:
        reader = self.chance.choice(self.readers)
        if reader.holds:
            id = self.chance.choice(sorted(reader.holds))
            reader.holds.discard(id)
            self.done[id] += self._do(self._queue.ack(GROUP, [id]))
            self.claimed.discard(id)
            self.lines.append(f"{reader.name} acknowledged {id}")
            if self.chance.random() < 0.1:
                self._replace(reader, "as it acknowledged")

    def _die(self) -> None:
        """Kill a reader between two commands, or after a command and before its response."""
        reader = self.chance.choice(self.readers)
        lost = ""
        if isinstance(reader.next, RunScript) and self.chance.random() < 0.7:
            answer = self._execute(reader.next)
            if answer[0] == b"messages":
                for stream, entry, fields in answer[2:]:
                    id = f"{stream.decode()}/{entry.decode()}"
                    self._delivered(reader, id, fields[fields.index(b"n") + 1])
                    lost += f" with {id}"
        self._replace(reader, lost)

    def _reclaim(self) -> None:
        reader = self.chance.choice(self.readers)
        found: list[Message] = self._do(
            self._queue.reclaim(GROUP, reader.name, MIN_IDLE, self.chance.randint(1, 5))
        )
        for message in found:
            self._check_owner(message.id)
            if message.id not in self.claimed or message.deliveries < 2:
                raise self._broken(f"{message.id} was reclaimed although no reader had it")
            reader.holds.add(message.id)
            self.lines.append(f"{reader.name} reclaimed {message.id}")
        self._see_dead()
        if found and self.chance.random() < 0.2:
            self._replace(reader, "as it reclaimed")

    def _extend(self) -> None:
        reader = self.chance.choice(self.readers)
        held = sorted(reader.holds)
        if self._do(self._queue.extend(GROUP, reader.name, held)) != held:
            raise self._broken(f"{reader.name} lives, and {held} are not its own any more")

    def _delete(self) -> None:
        if self.waiting:
            id = self.chance.choice(sorted(self.waiting))
            self._do(self._queue.delete(id))
            self.waiting.discard(id)
            self.written.discard(id)
            self.lines.append(f"deleted {id}")

    def _resize(self) -> None:
        self._streams = self.chance.choice((2, 4, 8))
        self.lines.append(f"{self._streams} streams from now on")

    def _flush_scripts(self) -> None:
        self._redis.script_flush()

    def _cordon(self) -> None:
        for copy in self._do(self._queue.cordon(None, 10)):
            if copy.id not in self.late:
                raise self._broken(f"{copy.id} was cordoned and had no deadline")

    def _ack_unread(self) -> None:
        if self.waiting:
            id = self.chance.choice(sorted(self.waiting))
            if self._do(self._queue.ack(GROUP, [id])):
                raise self._broken(f"{id} was acknowledged and nobody has read it")

    def _wait_long(self) -> None:
        """Let messages wait so long that a consumer which held them would be dead."""
        for id in self.waiting:
            stream, _, entry = id.partition("/")
            if stream != "default":
                self._make_idle(f"{{{self._name}}}:s{stream}", GROUP, "fairlead:waiting", entry)

    def _count(self) -> None:
        found = self._do(self._queue.stats(GROUP)).pending
        if found != len(self.claimed):
            raise self._broken(f"{found} messages count as claimed, not {sorted(self.claimed)}")

    # promises -------------------------------------------------------------------------------------

    def _check_waits(self) -> None:
        """Check that no reader waits while a message is ready."""
        if self.waiting:
            for reader in self.readers:
                if isinstance(reader.next, WaitForEntry) and not self._would_wake(reader.next):
                    raise self._broken(
                        f"{reader.name} waits while {sorted(self.waiting)} lie there"
                    )

    def _check_owner(self, id: str) -> None:
        for other in self.readers:
            if id in other.holds:
                raise self._broken(f"{id} was delivered while {other.name}, who lives, has it")

    def _finish(self) -> None:
        """Kill all readers and let one read the remaining messages: none may be missing."""
        for reader in self.readers:
            self._bury(reader)
        for text in self.later:
            self._make_due(text)
        last = self._reader()
        self.readers = [last]
        while True:
            try:
                message = self._do(self._queue.read(GROUP, last.name, 0.0, None))
                self._delivered(last, message.id, message.values["n"])
            except Empty:
                found = self._do(self._queue.reclaim(GROUP, last.name, MIN_IDLE, 100))
                self._see_dead()
                if not found:
                    break
                last.holds |= {message.id for message in found}
            for id in last.holds:
                self.done[id] += self._do(self._queue.ack(GROUP, [id]))
            last.holds.clear()
        lost = (self.written - self.done.keys() - self.dead) | set(self.later)
        if lost:
            raise self._broken(f"lost: {sorted(lost)}")
        twice = [id for id, count in self.done.items() if count > 1]
        if twice:
            raise self._broken(f"acknowledged twice: {twice}")
        cordoned = {copy.id for copy in self._do(self._queue.cordoned(1000))}
        if cordoned != self.late:
            raise self._broken(
                f"cordoned {sorted(cordoned)}, but past their deadlines were {sorted(self.late)}"
            )
        left = self._do(self._queue.stats(GROUP))
        if left.messages or left.pending or left.waiting or left.later:
            raise self._broken(f"everything is done, and there are {left}")

    # helpers --------------------------------------------------------------------------------------

    def _reader(self) -> Reader:
        self._named += 1
        return Reader(f"r{self._named}")

    def _key(self) -> str:
        return f"k{self.chance.randrange(12)}"

    def _written(self, id: str) -> None:
        self.counts["messages"] += 1
        self.written.add(id)
        self.waiting.add(id)
        self.lines.append(f"wrote {id}")

    def _make_due(self, text: str) -> None:
        self.due.add(text)
        self._redis.zadd(f"{{{self._name}}}:later", {self.later[text]: 1}, xx=True)
        self.lines.append(f"{self.later[text]} is due")

    def _delivered(self, reader: Reader, id: str, value: bytes) -> None:
        self._check_owner(id)
        if self.later.pop(text := value.decode(), None):
            if text not in self.due:
                raise self._broken(f"{id} was read by {reader.name} before its time")
            self._written(id)
        if id not in self.waiting:
            raise self._broken(f"{id} was read by {reader.name} and was not waiting")
        self.waiting.discard(id)
        self.claimed.add(id)
        reader.holds.add(id)

    def _send(self, reader: Reader, answer: Any) -> None:
        assert reader.steps is not None
        try:
            reader.next = reader.steps.send(answer)
            self.lines.append(f"{reader.name} {'waits' if reader.waits else 'looks'}")
        except StopIteration as end:
            reader.next = None
            for message in end.value:
                self._delivered(reader, message.id, message.values["n"])
                self.lines.append(f"{reader.name} read {message.id}")

    def _replace(self, reader: Reader, why: str) -> None:
        """Replace a dead reader by a new one."""
        self._bury(reader)
        self.counts["deaths"] += 1
        self.lines.append(f"{reader.name} died {why}")
        self.readers[self.readers.index(reader)] = self._reader()

    def _bury(self, reader: Reader) -> None:
        """Make the messages of a dead reader old enough to be reclaimed."""
        for id in reader.holds:
            stream, _, entry = id.partition("/")
            key, group = (
                (self._name, self._name)
                if stream == "default"
                else (f"{{{self._name}}}:s{stream}", GROUP)
            )
            self._make_idle(key, group, reader.name, entry)
        reader.holds = set()
        reader.next = reader.steps = None

    def _make_idle(self, key: str, group: str, consumer: str, entry: str) -> None:
        """Make the claim of a message old, if it is the consumer's."""
        held = ["XPENDING", key, group, entry, entry, 1, consumer]
        with suppress(ResponseError):  # no such group
            if self._redis.execute_command(*held, parse_detail=True):
                idle = ["IDLE", round(MIN_IDLE * 2000), "JUSTID"]
                self._redis.execute_command(
                    "XCLAIM", key, group, consumer, 0, entry, *idle, parse_justid=True
                )

    def _see_dead(self) -> None:
        self.dead = {copy.id for copy in self._do(DeadLetterSteps(self._queue).heads(1000, ""))}
        self.claimed -= self.dead

    def _would_wake(self, wait: WaitForEntry) -> bool:
        return bool(self._redis.xread(dict(wait.after), count=1))

    def _execute(self, run: RunScript) -> Any:
        try:
            return self._redis.evalsha(run.script.sha, 1, run.key, *run.arguments)
        except NoScriptError:
            return self._redis.eval(run.script.text, 1, run.key, *run.arguments)

    def _do(self, steps: Steps[Any]) -> Any:
        """Do all steps of an operation at once."""
        answer: Any = None
        while True:
            try:
                command = steps.send(answer)
            except StopIteration as end:
                return end.value
            assert isinstance(command, RunScript)
            answer = self._execute(command)

    def _broken(self, why: str) -> Broken:
        return Broken("\n  ".join([f"schedule {self.seed}: {why}", *self.lines]))
