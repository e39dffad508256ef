"""Operations of the JSON API on sharded queues: the reads and actions of their screens."""

from __future__ import annotations

from functools import partial
from typing import Literal

from fairlead.clock import to_micros
from fairlead.web import sharded_queues
from fairlead.web.api import bodies, documents
from fairlead.web.api.bodies import Text
from fairlead.web.api.conversion import instant_of, taken
from fairlead.web.api.operations import Act, Cursor, Operation, Read, RowNumber, read
from fairlead.web.inputs import DEFAULT_ROWS
from fairlead.web.page import Page
from fairlead.web.refusals import Refusal
from fairlead.web.sharded_queues import MOST_LETTERS, ShardedView, queue_named

READS: list[Read] = []
_read = partial(read, READS)


@_read("/sharded")
def sharded(page: Page) -> list[documents.ShardedQueue]:
    """List the sharded queues of this console."""
    return [_queue(each) for each in sharded_queues.views(page)]


@_read("/sharded/queue")
def sharded_queue(page: Page, *, name: Text, group: Text | None = None) -> documents.ShardedDetail:
    """Return one sharded queue: shard keys, streams, consumers of a group, by default the first.

    Raise Refusal for one that cannot be read.
    """
    queue = queue_named(page, name)
    found = sharded_queues.view(page, queue, group)
    if found.details is None:
        raise Refusal(503, f"{queue.name} cannot be read", found.trouble or "")
    return taken(documents.ShardedDetail, found.details, queue=_queue(found))


@_read("/sharded/dead-letters")
def dead_letters(
    page: Page, *, name: Text, after: Cursor = "", rows: RowNumber = DEFAULT_ROWS
) -> documents.Rows[documents.DeadLetter]:
    """List dead letters of a sharded queue, oldest first, at most 100 in a page."""
    queue, rows = queue_named(page, name), min(rows, MOST_LETTERS)
    found = queue.dead_letter_heads(count=rows, after=after)
    return documents.Rows(
        rows=[
            taken(
                documents.DeadLetter,
                letter,
                at=instant_of(to_micros(letter.at)),
                fields=dict(sharded_queues.shown_fields(page, queue.name, letter.values)),
            )
            for letter in found
        ],
        next=found[-1].position if len(found) == rows else None,
    )


def _perform(
    page: Page, verb: Literal["requeue", "delete"], body: bodies.DeadLetters
) -> documents.ChangedLetters:
    done = sharded_queues.perform(page, verb, queue_named(page, body.name), body.ids)
    return documents.ChangedLetters(ids=done)


def _weigh(page: Page, body: bodies.ShardKeyWeight) -> None:
    queue = queue_named(page, body.name)
    sharded_queues.set_weight(page, queue, body.shard_key, body.weight)


def _queue(found: ShardedView) -> documents.ShardedQueue:
    groups = [] if found.details is None else found.details.groups
    return taken(documents.ShardedQueue, found, groups=groups)


SHARDED: tuple[Operation, ...] = (
    *READS,
    Act(
        name="requeue_dead_letters",
        path="/sharded/requeue",
        summary="Write messages of dead letters into their queue again, for all groups.",
        result=documents.ChangedLetters,
        respond=lambda page, body: _perform(page, "requeue", body),
        action="retry",
        body=bodies.DeadLetters,
    ),
    Act(
        name="delete_dead_letters",
        path="/sharded/delete",
        summary="Remove dead letters for good.",
        result=documents.ChangedLetters,
        respond=lambda page, body: _perform(page, "delete", body),
        action="cancel",
        body=bodies.DeadLetters,
    ),
    Act(
        name="set_shard_key_weight",
        path="/sharded/weight",
        summary="Set the weight of a shard key, or return to the weights of its messages.",
        respond=_weigh,
        action="weight",
        body=bodies.ShardKeyWeight,
    ),
)
"""All operations on sharded queues."""
