"""Sharded queues: their counts, consumers, longest streams and heaviest shard keys, and their dead
letters with what a person does to them."""

from __future__ import annotations

from typing import Literal

from starlette.responses import Response

from fairlead.clock import to_micros
from fairlead.web import sharded_queues
from fairlead.web.inputs import BadInput
from fairlead.web.page import Page
from fairlead.web.refusals import Refusal
from fairlead.web.routing import Navigation, ScreenRoute, action, screen
from fairlead.web.sharded_queues import (
    MOST_LETTERS,
    MOST_NAME,
    has_audit,
    perform,
    queue_named,
    shown_fields,
    view,
    views,
)

NAVIGATION = Navigation(title="Sharded", route="sharded", order=60)


def routes() -> list[ScreenRoute]:
    """Return the routes of these screens."""
    return [
        screen("/sharded", show_queues, name="sharded"),
        screen("/sharded/queue", show_queue, name="sharded_queue"),
        action(
            "/sharded/confirm/requeue",
            lambda page: _confirm(page, "requeue"),
            name="sharded_confirm_requeue",
            action="retry",
        ),
        action(
            "/sharded/confirm/delete",
            lambda page: _confirm(page, "delete"),
            name="sharded_confirm_delete",
            action="cancel",
        ),
        action(
            "/sharded/requeue",
            lambda page: _perform(page, "requeue"),
            name="sharded_requeue",
            action="retry",
        ),
        action(
            "/sharded/delete",
            lambda page: _perform(page, "delete"),
            name="sharded_delete",
            action="cancel",
        ),
        action("/sharded/weight", set_weight, name="sharded_weight", action="weight"),
    ]


def show_queues(page: Page) -> Response:
    """Show every sharded queue of the console."""
    return page.render("sharded.html", queues=views(page), now=page.context.clock.now())


def show_queue(page: Page) -> Response:
    """Show one sharded queue for one of its groups, and a page of its dead letters. Raise Refusal
    for a queue that cannot be read."""
    queue = queue_named(page, page.query.required("name"))
    group = page.query.text("group", MOST_NAME)
    after, rows = page.query.text("after", 100) or "", min(page.query.rows(), MOST_LETTERS)
    found = view(page, queue, group)
    if found.trouble is not None:
        raise Refusal(503, f"{queue.name} cannot be read", found.trouble)
    letters = page.shared(
        ("dead letters", queue.name, after, rows),
        lambda: queue.dead_letter_heads(count=rows, after=after),
    )
    return page.render(
        "sharded_queue.html",
        view=found,
        letters=[
            (letter, to_micros(letter.at), shown_fields(page, queue.name, letter.values))
            for letter in letters
        ],
        first=page.with_query(after=None) if after else None,
        following=page.with_query(after=letters[-1].position) if len(letters) == rows else None,
        is_audited=has_audit(page),
        now=page.context.clock.now(),
    )


def set_weight(page: Page) -> Response:
    """Set the weight of a shard key, or return to the weights of its messages."""
    queue = queue_named(page, page.form.required("name"))
    key, weight = page.form.exact("shard_key") or "", page.form.number("weight", 0.001, 1000.0)
    sharded_queues.set_weight(page, queue, key, weight)
    what = "the weights of its messages hold" if weight is None else f"weight {weight:g}"
    return page.done(f"{key or '(no key)'}: {what}.", "sharded_queue", name=queue.name)


# how ----------------------------------------------------------------------------------------------


def _confirm(page: Page, verb: str) -> Response:
    """Ask before dead letters are written into the queue again, or removed for good."""
    queue, ids = queue_named(page, page.form.required("name")), _ids(page)
    return page.render(
        "sharded_confirm.html",
        verb=verb,
        name=queue.name,
        ids=ids,
        is_audited=has_audit(page),
    )


def _perform(page: Page, verb: Literal["requeue", "delete"]) -> Response:
    """Write the messages of dead letters into the queue again, for all groups, or remove them."""
    queue, ids = queue_named(page, page.form.required("name")), _ids(page)
    found = perform(page, verb, queue, ids)
    done = "is in the queue again" if verb == "requeue" else "is deleted"
    message = f"{len(found)} of {len(ids)}: {done}."
    if len(found) < len(ids):
        message += " The others were not dead letters any more."
    return page.done(message, "sharded_queue", name=queue.name)


def _ids(page: Page) -> list[str]:
    ids = page.form.many("id", MOST_LETTERS)
    if not ids:
        raise BadInput("no dead letter is selected: select some, then choose what to do")
    return ids
