"""Sharded queues of a console, for its screens and its JSON API: reads, and actions with their
entries in the audit log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from fairlead.errors import FairleadError, NotSupported, UnknownQueue
from fairlead.operate.audit import Recorder
from fairlead.operate.store.audit import AuditLog, AuditOutcome
from fairlead.web.page import Page

if TYPE_CHECKING:
    from fairlead.sharded import SyncShardedQueue

try:
    from fairlead.sharded import Details, Stats
except ImportError:  # without redis, a console has no sharded queue
    Details = Stats = Any  # type: ignore[misc, assignment]

MOST_LETTERS = 100
"""Dead letters of one page, and of one action."""
MOST_NAME = 1024
"""Bytes of the name of a group."""
_MOST_FIELDS = 20
_VERBS = {"requeue": "requeue_dead_letters", "delete": "delete_dead_letters"}


class ShardedView(msgspec.Struct, frozen=True):
    """One sharded queue as a console shows it."""

    name: str
    stats: Stats | None = None
    """Counts, without those of a group where no group is known; None if they cannot be read."""
    details: Details | None = None
    group: str = ""
    trouble: str | None = None
    """Why the queue cannot be read."""


def queue_named(page: Page, name: str) -> SyncShardedQueue:
    """Return a queue of the console. Raise UnknownQueue."""
    found = page.parts.sharded.get(name)
    if found is None:
        raise UnknownQueue(f"this console shows no sharded queue {name!r}: see console(sharded=)")
    return found


def views(page: Page) -> list[ShardedView]:
    """Return every queue of the console, for the first group of each."""
    return page.shared("sharded", lambda: [_view(each) for each in page.parts.sharded.values()])


def view(page: Page, queue: SyncShardedQueue, group: str | None) -> ShardedView:
    """Return a queue for a group, by default its first one."""
    return page.shared(("sharded", queue.name, group), lambda: _view(queue, group))


def perform(
    page: Page, verb: Literal["requeue", "delete"], queue: SyncShardedQueue, ids: Sequence[str]
) -> list[str]:
    """Requeue or delete dead letters; return the ids of those that still were dead letters."""
    _note(page, _VERBS[verb], queue.name, " ".join(ids))
    run = queue.requeue_dead_letters if verb == "requeue" else queue.delete_dead_letters
    return list(run(*ids))


def set_weight(page: Page, queue: SyncShardedQueue, key: str, weight: float | None) -> None:
    """Set the weight of a shard key; None returns to the weights of its messages."""
    verb = "clear_weight" if weight is None else "set_weight"
    _note(page, verb, queue.name, "" if weight is None else f"{weight:g}", key)
    queue.set_weight(key, weight)


def has_audit(page: Page) -> bool:
    """Return whether the store of tasks is a SQL database, which has an audit log."""
    try:
        AuditLog(page.context.sql_store.database)
    except NotSupported:
        return False
    return True


def shown_fields(page: Page, name: str, values: Mapping[str, bytes]) -> list[tuple[str, str]]:
    """Return the first fields as text, as `mask` shows them; bytes that are no UTF-8 become
    escapes."""
    text = {field: value.decode(errors="backslashreplace") for field, value in values.items()}
    shown = page.caller.shown(name, text)
    if not isinstance(shown, Mapping):
        return [("", str(shown))]
    return [(str(field), str(value)) for field, value in list(shown.items())[:_MOST_FIELDS]]


def _note(page: Page, verb: str, queue: str, details: str, key: str | None = None) -> None:
    """Note an action before it is sent to Redis, which is no part of a transaction of the store."""
    recorder = Recorder(page.context)
    recorder.note(
        recorder.entry(
            page.access.name,
            verb,
            outcome=AuditOutcome.ASKED,
            fairness_key=key,
            subject=f"sharded queue {queue}",
            details=details or None,
        )
    )


def _view(queue: SyncShardedQueue, group: str | None = None) -> ShardedView:
    try:
        details = queue.details(group or "")
        if group is None and details.groups:
            group = details.groups[0]
            details = queue.details(group)
        return ShardedView(queue.name, queue.stats(group or ""), details, group or "")
    except FairleadError as error:
        return ShardedView(queue.name, trouble=str(error))
