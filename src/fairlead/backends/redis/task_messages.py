"""Tasks on Redis alone: each is one message, which holds all data of the task."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fairlead.backends.redis.sharded.lanes import Delivery
from fairlead.backends.redis.sharded.message import HEAD_TEXT, RESERVED, Entry, RemovedMessage
from fairlead.backends.sql.rows import NODE_LOST
from fairlead.model import (
    DEFAULT_WEIGHT,
    ClaimedTask,
    Finish,
    NewTask,
    State,
    TaskRecord,
    Trigger,
    TriggerPath,
)
from fairlead.model.fields import Key, Micros, Runs, TaskId, Weight
from fairlead.model.reading import msgpack_reader

RETRY = "retry/"
"""The prefix of the ticket of a task that waits for its retry."""

TASK = "task"

PAYLOAD = "payload"
"""The field of the payload, which nothing but a run of the task reads."""

REASONS = ("error_type", "error_text")
"""The fields that a dead letter has beside its task."""


class Body(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="k2"):
    """The stored form of a task without its payload. The tag is its format: a field may be added at
    the end; any other change needs another tag."""

    id: TaskId
    name: Key
    payload_format: str
    context: str | None
    weight: Weight
    run_at: Micros
    submitted_at: Micros
    size: Annotated[int, msgspec.Meta(ge=0)]
    """Bytes of the payload."""
    attempts: Runs = 0
    """Runs that have ended."""
    tries: Runs = 0
    """Runs that counted against the retry policy."""


_encode = msgspec.msgpack.Encoder().encode
_read = msgpack_reader(Body)


class HeldTask(msgspec.Struct, frozen=True, gc=False):
    """A task that this node has claimed."""

    body: Body
    payload: bytes
    queue: str
    priority: int
    fairness_key: str
    deliveries: int
    ready_at: int
    """Microseconds since the epoch."""

    @property
    def version(self) -> int:
        """The version, which grows with every delivery, and once more with the claim."""
        return 2 * (self.body.attempts + self.deliveries) - 1

    def trigger(self) -> Trigger:
        """Return the trigger of the next run."""
        body = self.body
        return Trigger(
            body.id,
            self.version,
            self.queue,
            0,
            body.name,
            self.priority,
            self.fairness_key,
            body.weight,
            None,
            self.path,
        )

    @property
    def path(self) -> str:
        """Path of the trigger: HEAL after an earlier delivery, POLLER after a wait, else HOOK."""
        if self.deliveries > 1:
            return TriggerPath.HEAL
        was_later = self.body.attempts > 0 or self.body.run_at > self.body.submitted_at
        return TriggerPath.POLLER if was_later else TriggerPath.HOOK

    def claimed(self) -> ClaimedTask:
        """Return the task in the form that the engine takes."""
        body = self.body
        attempt = body.attempts + self.deliveries
        return ClaimedTask(
            body.id,
            self.version + 1,
            attempt,
            body.tries + 1,
            self.payload,
            body.payload_format,
            self.ready_at,
            False,
            body.context,
        )

    def next(self, finish: Finish) -> Entry:
        """Return the message that follows a run which did not end the task."""
        tries = self.body.tries + finish.spends_try if not finish.resets_tries else 0
        run_at = finish.run_at if finish.run_at is not None else self.body.run_at
        attempts = self.body.attempts + self.deliveries
        body = msgspec.structs.replace(self.body, attempts=attempts, tries=tries, run_at=run_at)
        is_later = finish.next_state == State.WAITING
        at = millis(run_at) if is_later else ""
        return entry(body, self.payload, self.fairness_key, at=at, ticket=RETRY + body.id)

    def again(self) -> Entry:
        """Return the message that follows a claim without a run."""
        return entry(self.body, self.payload, self.fairness_key)


def entry(
    body: Body, payload: bytes, fairness_key: str, *, at: int | str = "", ticket: str = ""
) -> Entry:
    """Return a task as a message. Its own fields are small, so that the head of a dead letter has
    them all."""
    fields: list[bytes | str] = [f"{RESERVED}key", fairness_key, f"{RESERVED}name", body.id]
    if body.weight != DEFAULT_WEIGHT:
        fields += [f"{RESERVED}weight", repr(body.weight)]
    return Entry([*fields, *replaced(body), PAYLOAD, payload], fairness_key, at, ticket)


def replaced(body: Body) -> tuple[str, bytes]:
    """Return the field of the task, for a message that keeps its payload."""
    return TASK, _encode(body)


def new_entry(task: NewTask, window: int) -> Entry:
    """Return a submitted task as a message. `window`: milliseconds for which its unique key
    holds."""
    body = Body(
        task.id,
        task.name,
        task.payload_format,
        task.context,
        task.weight,
        task.run_at,
        task.submitted_at,
        len(task.payload),
    )
    at: int | str = "" if task.is_due else millis(task.run_at)
    found = entry(body, task.payload, task.fairness_key, at=at, ticket=task.id)
    return (
        found
        if task.unique_key is None
        else found._replace(unique=task.unique_key, window=window, name=task.id)
    )


def held(queue: str, delivery: Delivery) -> HeldTask:
    """Return the task of a claimed message. Raise msgspec.DecodeError or KeyError if the message is
    no task."""
    found = delivery.message
    at = int(found.id.partition("/")[2].partition("-")[0])
    body, payload = _read(found.values[TASK]), found.values[PAYLOAD]
    return HeldTask(
        body,
        payload,
        queue,
        delivery.priority,
        found.shard_key,
        found.deliveries,
        at * 1000,
    )


def error_fields(finish: Finish) -> Entry:
    """Return the fields that a dead letter has beside its task."""
    return reasons(finish.error_type or "", finish.error_text or "")


def reasons(error_type: str, error_text: str) -> Entry:
    """Return the reasons of a dead letter."""
    kind, text = REASONS
    return Entry((kind, error_type, text, error_text), "")


def is_cut(letter: RemovedMessage) -> bool:
    """Return whether the head of a dead letter may have only the beginning of the error."""
    return any(len(letter.values.get(field, b"")) >= HEAD_TEXT for field in REASONS)


def dead(letter: RemovedMessage) -> Body | None:
    """Return the task of a dead letter; None if the letter is no task."""
    try:
        return _read(letter.values[TASK])
    except (msgspec.DecodeError, KeyError):
        return None


def record(queue: str, priority: int, letter: RemovedMessage, body: Body) -> TaskRecord:
    """Return the record of a task in ERROR."""
    attempts = body.attempts + letter.deliveries
    lost = NODE_LOST, f"the task was lost with its worker {letter.deliveries} times"
    error = lost
    if REASONS[0] in letter.values:
        kind, text = (letter.values.get(field, b"").decode(errors="replace") for field in REASONS)
        error = kind, text
    return TaskRecord(
        body.id,
        queue,
        0,
        body.name,
        State.ERROR,
        2 * attempts + 1,
        attempts,
        body.tries + 1,
        priority,
        letter.shard_key,
        body.weight,
        None,
        None,
        body.submitted_at,
        body.run_at,
        None,
        None,
        None,
        *error,
        body.context,
        body.size,
    )


def millis(micros: int) -> int:
    """Return milliseconds, rounded up so that no task runs before its time."""
    return -(-micros // 1000)
