"""Operations of the JSON API on sharded queues: the reads and actions of their screens."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from fairlead.clock import to_micros
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
from fairlead.web import sharded_queues
from fairlead.web.api.documents import ChangedLetters, DeadLetter
from fairlead.web.page import Page
from fairlead.web.refusals import Refusal
from fairlead.web.sharded_queues import MOST_LETTERS, ShardedView, queue_named

SHARDED: list[Operation] = []
"""All operations on sharded queues."""
_sharded = partial(declare, SHARDED, needs_page=True)
Letters = Annotated[list[Text], Meta(min_length=1, max_length=MOST_LETTERS)]


@_sharded("/sharded")
def sharded(page: Page) -> list[ShardedView]:
    """List the sharded queues of this console, without their details."""
    return [replace(each, details=None) for each in sharded_queues.views(page)]


@_sharded("/sharded/queue")
def sharded_queue(page: Page, *, name: Text, group: Text | None = None) -> ShardedView:
    """Return one sharded queue: shard keys, streams, consumers of a group, by default the first.

    Raise Refusal for one that cannot be read.
    """
    queue = queue_named(page, name)
    found = sharded_queues.view(page, queue, group)
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
                fields=dict(sharded_queues.shown_fields(page, queue.name, letter.values)),
            )
            for letter in found
        ],
        next=found[-1].position if len(found) == rows else None,
    )


@_sharded("/sharded/requeue", right="retry")
def requeue_dead_letters(page: Page, *, name: Text, ids: Letters) -> ChangedLetters:
    """Write messages of dead letters into their queue again, for all groups."""
    done = sharded_queues.perform(page, "requeue", queue_named(page, name), ids)
    return ChangedLetters(ids=done)


@_sharded("/sharded/delete", right="cancel")
def delete_dead_letters(page: Page, *, name: Text, ids: Letters) -> ChangedLetters:
    """Remove dead letters for good."""
    done = sharded_queues.perform(page, "delete", queue_named(page, name), ids)
    return ChangedLetters(ids=done)


@_sharded("/sharded/weight", right="weight")
def set_shard_key_weight(page: Page, *, name: Text, shard_key: Text, weight: Weight | None) -> None:
    """Set the weight of a shard key; null returns to the weights of its messages."""
    sharded_queues.set_weight(page, queue_named(page, name), shard_key, weight)
