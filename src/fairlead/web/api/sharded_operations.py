"""Operations of the JSON API on sharded queues: the reads and actions of their screens."""

from __future__ import annotations

from typing import Literal

from fairlead.clock import to_micros
from fairlead.web import sharded_queues
from fairlead.web.api import bodies, documents
from fairlead.web.api.conversion import instant_of, taken
from fairlead.web.api.operations import AFTER, ROWS, Act, Operation, Read, text
from fairlead.web.page import Page
from fairlead.web.refusals import Refusal
from fairlead.web.sharded_queues import MOST_LETTERS, MOST_NAME, ShardedView, queue_named

_NAME = text("name", "Name of a sharded queue of this console.", is_required=True)


def _list(page: Page) -> documents.ShardedList:
    found = sharded_queues.views(page)
    return documents.ShardedList(queues=[_queue(each) for each in found])


def _show(page: Page) -> documents.ShardedDetail:
    queue = queue_named(page, page.query.required("name"))
    found = sharded_queues.view(page, queue, page.query.text("group", MOST_NAME))
    if found.details is None:
        raise Refusal(503, f"{queue.name} cannot be read", found.trouble or "")
    return taken(documents.ShardedDetail, found.details, queue=_queue(found))


def _letters(page: Page) -> documents.DeadLetterList:
    queue = queue_named(page, page.query.required("name"))
    after, rows = page.query.text("after", 100) or "", min(page.query.rows(), MOST_LETTERS)
    found = queue.dead_letter_heads(count=rows, after=after)
    return documents.DeadLetterList(
        letters=[
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
    Read(
        name="sharded",
        path="/sharded",
        summary="List the sharded queues of this console.",
        result=documents.ShardedList,
        respond=_list,
    ),
    Read(
        name="sharded_queue",
        path="/sharded/queue",
        summary="Return one sharded queue: shard keys, streams, consumers of a group.",
        result=documents.ShardedDetail,
        respond=_show,
        parameters=(_NAME, text("group", "Group of consumers; the first one without it.")),
    ),
    Read(
        name="dead_letters",
        path="/sharded/dead-letters",
        summary="List dead letters of a sharded queue, oldest first, at most 100 in a page.",
        result=documents.DeadLetterList,
        respond=_letters,
        parameters=(_NAME, AFTER, ROWS),
    ),
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
