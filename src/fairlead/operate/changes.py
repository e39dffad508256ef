"""Changes of tasks by people, as values: what may be changed, and the steps that change it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec

from fairlead.core import values
from fairlead.declare.options import Options
from fairlead.errors import InvalidTask, NotAllowed
from fairlead.model import FINAL_STATES, MAX_WEIGHT, MIN_WEIGHT, State, TaskRecord
from fairlead.operate.store.actions import BulkAction
from fairlead.ports.notification import Notification
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Steps
from fairlead.ports.task_records import TaskVersion

DOUBLE_RUN = "it is running: with force it will run a second time beside the first"

_RESUME = "resume the action with the version that made it"

A_PERSON = "a person"
"""Actor of a change for which no name is given."""

Changed = Steps[tuple[set[str], Notification]]


class _Change(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", forbid_unknown_fields=True
):
    """Base of the changes. A kind of change also has `done`, the participle that messages use, such
    as "retried", and `states`, in which a task can be changed so."""

    actor: str = A_PERSON
    """The person who makes the change."""

    @property
    def verb(self) -> str:
        """Return the name of the change, such as `retry`."""
        return str(self.__struct_config__.tag)

    def details(self) -> str | None:
        """Return the values of the change as an audit entry shows them; None without any."""
        given = {
            name: value
            for name, value in msgspec.structs.asdict(self).items()
            if name != "actor" and value is not None and value is not False
        }
        return msgspec.json.encode(given, enc_hook=str.__str__).decode() if given else None

    def concerns(self, task: TaskRecord) -> bool:
        """Return whether the task would differ afterwards."""
        return True


class Retry(_Change, frozen=True, kw_only=True, tag="retry"):
    """Run tasks that are in ERROR or wait for a retry now; count their tries from zero."""

    done: ClassVar[str] = "retried"
    states: ClassVar[frozenset[State]] = frozenset({State.WAITING, State.ERROR})

    def steps(self, store: SqlStore, tasks: Sequence[TaskRecord], now: int) -> Changed:
        """Move them."""
        return store.move(versions(tasks), State.SUBMITTED, now, now, reset_tries=True)


class Resume(_Change, frozen=True, kw_only=True, tag="resume"):
    """Run waiting tasks, and tasks in ERROR, now; count the tries of the latter from zero."""

    done: ClassVar[str] = "resumed"
    force: bool = False
    """Also resume running tasks, which then run twice."""

    @property
    def states(self) -> frozenset[State]:
        """Running tasks too, with force."""
        found = frozenset({State.WAITING, State.SUBMITTED, State.ERROR})
        return found | {State.PROCESSING} if self.force else found

    def steps(self, store: SqlStore, tasks: Sequence[TaskRecord], now: int) -> Changed:
        """Move them, those in ERROR apart from the others."""
        changed: set[str] = set()
        ready = []
        for is_error in (False, True):
            part = [task for task in tasks if (task.state == State.ERROR) is is_error]
            if part:
                ids, notification = yield from store.move(
                    versions(part), State.SUBMITTED, now, now, reset_tries=is_error
                )
                changed |= ids
                ready += notification.ready
        return changed, Notification(ready=ready)


class Reschedule(_Change, frozen=True, kw_only=True, tag="reschedule"):
    """Give waiting tasks another time; a past time means now."""

    done: ClassVar[str] = "rescheduled"
    states: ClassVar[frozenset[State]] = frozenset({State.WAITING})
    run_at: int
    """Microseconds since the epoch."""

    def steps(self, store: SqlStore, tasks: Sequence[TaskRecord], now: int) -> Changed:
        """Move them."""
        to = State.WAITING if self.run_at > now else State.SUBMITTED
        return store.move(versions(tasks), to, self.run_at, now, reset_tries=False)


class NewValues(_Change, frozen=True, kw_only=True, tag="change"):
    """Give tasks that have not started another priority or fairness key; None keeps the present
    one. SUBMITTED tasks then come after all others of that priority and key."""

    done: ClassVar[str] = "changed"
    states: ClassVar[frozenset[State]] = frozenset({State.WAITING, State.SUBMITTED})
    priority: int | None = None
    fairness_key: str | None = None

    def concerns(self, task: TaskRecord) -> bool:
        """A task that has these values already keeps its position."""
        return self.priority not in (None, task.priority) or self.fairness_key not in (
            None,
            task.fairness_key,
        )

    def steps(self, store: SqlStore, tasks: Sequence[TaskRecord], now: int) -> Changed:
        """Change them."""
        return store.change(versions(tasks), self.priority, self.fairness_key, now, self.actor)


class Cancel(_Change, frozen=True, kw_only=True, tag="cancel"):
    """End tasks as CANCELLED, in any unfinished state, and stop the running ones."""

    done: ClassVar[str] = "cancelled"
    states: ClassVar[frozenset[State]] = frozenset(State) - FINAL_STATES

    def steps(self, store: SqlStore, tasks: Sequence[TaskRecord], now: int) -> Changed:
        """End them."""
        return store.end(versions(tasks), State.CANCELLED, now, self.actor)


class Fail(_Change, frozen=True, kw_only=True, tag="fail"):
    """End tasks in ERROR as FAILED, which ends their incidents."""

    done: ClassVar[str] = "failed"
    states: ClassVar[frozenset[State]] = frozenset({State.ERROR})

    def steps(self, store: SqlStore, tasks: Sequence[TaskRecord], now: int) -> Changed:
        """End them."""
        return store.end(versions(tasks), State.FAILED, now, self.actor)


class _KeyChange(_Change, frozen=True, kw_only=True):
    """A change of the settings of fairness keys, such as tenants, in one queue."""

    states: ClassVar[frozenset[State]] = frozenset()
    queue: str
    keys: tuple[str, ...]
    """Different keys, in the order in which they are changed."""

    def details(self) -> str | None:
        """Return the new value, and the number of keys."""
        value = "cleared" if self.value is None else self.value
        return msgspec.json.encode({self.verb: value, "keys": len(self.keys)}).decode()

    @property
    def value(self) -> float | None:
        """Return the new value; None removes the present one."""
        found: float | None = getattr(self, self.verb)
        return found


class SetWeights(_KeyChange, frozen=True, kw_only=True, tag="weight"):
    """Set the weight of keys, or return to the weights of their tasks."""

    done: ClassVar[str] = "weighted"
    weight: float | None

    def steps(self, store: SqlStore, keys: Sequence[str]) -> Steps[int]:
        """Set the weight of some of the keys; return how many were changed."""
        weight = None if self.weight is None else float(self.weight)
        return store.set_weights(self.queue, keys, weight)


class SetLimits(_KeyChange, frozen=True, kw_only=True, tag="limit"):
    """Limit how many tasks of each key run at once on each node, or lift the limits."""

    done: ClassVar[str] = "limited"
    limit: int | None

    def steps(self, store: SqlStore, keys: Sequence[str]) -> Steps[int]:
        """Set the limit of some of the keys; return how many were changed."""
        return store.set_limits(self.queue, keys, self.limit)


KeyChange = SetWeights | SetLimits
"""Every change of the settings of keys."""

MOST_KEYS = 10_000
"""Fairness keys of one bulk action."""

MOST_KEY_BYTES = 500_000
"""Bytes of these keys together."""

Change = Retry | Resume | Reschedule | NewValues | Cancel | Fail
"""A change that a person makes to one task or to many."""

CHANGES: dict[str, Callable[..., Change]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (Retry, Resume, Reschedule, NewValues, Cancel, Fail)
}
"""Kinds of changes of tasks, by verb."""

StoredChange = Change | KeyChange
"""Every change that a bulk action stores, as JSON."""


def as_text(change: StoredChange) -> str:
    """Return the change as JSON."""
    return msgspec.json.encode(change).decode()


def shown_text(text: str) -> str:
    """Return the change of `as_text` for a person: a change of keys names the first five, and has
    their number. A text that this version cannot read is returned as it is."""
    try:
        change = from_text(text)
    except InvalidTask:
        return text
    if not isinstance(change, KeyChange):
        return text
    found = msgspec.json.decode(text)
    found |= {"keys": change.keys[:5], "number": len(change.keys)}
    return msgspec.json.encode(found).decode()


def change_of(action: BulkAction) -> StoredChange:
    """Return the change of a stored action. Raise InvalidTask if this version does not know the
    change, or a condition of the tasks."""
    if action.unreadable is not None:
        raise InvalidTask(
            f"this version cannot read which tasks the action is about: {action.unreadable};"
            f" {_RESUME}"
        )
    return from_text(action.change)


def from_text(text: str) -> StoredChange:
    """Return the change of `as_text`. Raise InvalidTask for a change that this version does not
    know."""
    try:
        change: StoredChange = msgspec.json.decode(text, type=StoredChange)
        return change
    except msgspec.MsgspecError as error:
        raise InvalidTask(
            f"this version cannot read the change {values.brief(text)}: {error}; {_RESUME}"
        ) from error


def versions(tasks: Sequence[TaskRecord]) -> list[TaskVersion]:
    """Return the tasks as (id, version)."""
    return [(task.id, task.version) for task in tasks]


def check_state(task: TaskRecord, change: Change) -> None:
    """Raise NotAllowed, with the reason, if the task is in none of the states of the change."""
    if task.state in change.states:
        return
    if task.state in FINAL_STATES:
        raise NotAllowed(
            f"task {task.id} is {task.state}: it is finished and cannot be {change.done}; submit"
            " it again"
        )
    is_doubled = task.state == State.PROCESSING and isinstance(change, Resume)
    hint = f" ({DOUBLE_RUN})" if is_doubled else ""
    raise NotAllowed(
        f"task {task.id} is {task.state}: only {', '.join(sorted(change.states))} can be"
        f" {change.done}{hint}"
    )


def check_key_change(change: KeyChange) -> None:
    """Raise InvalidTask for a change of keys that is none, for keys or values that cannot be, and
    for too many keys."""
    if not isinstance(change, KeyChange):
        raise InvalidTask(f"change {values.brief(change)}: use SetWeights(...) or SetLimits(...)")
    values.text("actor", change.actor, may_be_empty=True, error=InvalidTask)
    values.name("queue", change.queue, error=InvalidTask)
    if not change.keys:
        raise InvalidTask("no tenant is selected: name some, or search for others")
    size = 0
    for key in change.keys[: MOST_KEYS + 1]:
        values.text("fairness_key", key, may_be_empty=True, error=InvalidTask)
        size += len(key.encode())
    if len(change.keys) > MOST_KEYS or size > MOST_KEY_BYTES:
        raise InvalidTask(
            f"{len(change.keys):,} keys: one action changes at most {MOST_KEYS:,}, of"
            f" {MOST_KEY_BYTES:,} bytes together; search for fewer"
        )
    if len({*change.keys}) < len(change.keys):
        raise InvalidTask("a key is named twice: name each once")
    if isinstance(change, SetWeights) and change.weight is not None:
        values.number("weight", change.weight, MIN_WEIGHT, MAX_WEIGHT, InvalidTask)
    if isinstance(change, SetLimits) and change.limit is not None:
        values.whole("limit", change.limit, 1, values.MOST_COUNT, InvalidTask)


def check_change(change: Change) -> None:
    """Raise InvalidTask for a change that is none, or for new values that no task can have."""
    if not isinstance(change, Change):
        raise InvalidTask(
            f"change {values.brief(change)}: use a change such as Retry() or Cancel()"
        )
    values.text("actor", change.actor, may_be_empty=True, error=InvalidTask)
    if isinstance(change, Resume) and not isinstance(change.force, bool):
        raise InvalidTask(f"force {values.brief(change.force)}: use True or False")
    if not isinstance(change, NewValues):
        return
    given = {"priority": change.priority, "fairness_key": change.fairness_key}
    given = {option: value for option, value in given.items() if value is not None}
    if not given:
        raise InvalidTask("nothing to change: give a priority, a fairness key, or both")
    Options().changed(given)
