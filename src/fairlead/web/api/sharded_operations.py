"""Sharded queues of a console: what people read and change."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from fairlead.clock import to_micros
from fairlead.errors import FairleadError, NotSupported, UnknownQueue
from fairlead.operate.audit import Recorder
from fairlead.operate.documents import instant_of, taken
from fairlead.operate.operations import (
    DEFAULT_ROWS,
    Cursor,
    Operation,
    RowNumber,
    Text,
    Weight,
    declare,
)
from fairlead.operate.results import Rows
from fairlead.operate.store.audit import AuditLog, AuditOutcome
from fairlead.web.api.documents import ChangedLetters, DeadLetter
from fairlead.web.page import Page
from fairlead.web.refusals import Refusal

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

SHARDED: list[Operation] = []
"""All operations on sharded queues."""
_sharded = partial(declare, SHARDED, needs_page=True)
Letters = Annotated[list[Text], Meta(min_length=1, max_length=MOST_LETTERS)]


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


@_sharded("/sharded")
def sharded(page: Page) -> list[ShardedView]:
    """List the sharded queues of this console, without their details."""
    return [replace(each, details=None) for each in views(page)]


@_sharded("/sharded/queue")
def sharded_queue(page: Page, *, name: Text, group: Text | None = None) -> ShardedView:
    """Return one sharded queue: shard keys, streams, consumers of a group, by default the first.

    Raise Refusal for one that cannot be read.
    """
    queue = queue_named(page, name)
    found = view(page, queue, group)
    if found.details is None:
        raise Refusal(503, f"{queue.name} cannot be read", found.trouble or "")
    return found


@_sharded("/sharded/dead-letters")
def dead_letters(
    page: Page, *, name: Text, after: Cursor = "", rows: RowNumber = DEFAULT_ROWS
) -> Rows[DeadLetter]:
    """List dead letters of a sharded queue, oldest first, at most 100 in a page."""
    queue, rows = queue_named(page, name), min(rows, MOST_LETTERS)
    found = queue.dead_letter_heads(count=rows, after=after)
    return Rows(
        rows=[
            taken(
                DeadLetter,
                letter,
                at=instant_of(to_micros(letter.at)),
                fields=dict(shown_fields(page, queue.name, letter.values)),
            )
            for letter in found
        ],
        next=found[-1].position if len(found) == rows else None,
    )


@_sharded("/sharded/requeue", right="retry")
def requeue_dead_letters(page: Page, *, name: Text, ids: Letters) -> ChangedLetters:
    """Write messages of dead letters into their queue again, for all groups."""
    queue = queue_named(page, name)
    _note(page, "requeue_dead_letters", queue.name, " ".join(ids))
    return ChangedLetters(ids=list(queue.requeue_dead_letters(*ids)))


@_sharded("/sharded/delete", right="cancel")
def delete_dead_letters(page: Page, *, name: Text, ids: Letters) -> ChangedLetters:
    """Remove dead letters for good."""
    queue = queue_named(page, name)
    _note(page, "delete_dead_letters", queue.name, " ".join(ids))
    return ChangedLetters(ids=list(queue.delete_dead_letters(*ids)))


@_sharded("/sharded/weight", right="weight")
def set_shard_key_weight(page: Page, *, name: Text, shard_key: Text, weight: Weight | None) -> None:
    """Set the weight of a shard key; null returns to the weights of its messages."""
    queue = queue_named(page, name)
    verb = "clear_weight" if weight is None else "set_weight"
    _note(page, verb, queue.name, "" if weight is None else f"{weight:g}", shard_key)
    queue.set_weight(shard_key, weight)


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
