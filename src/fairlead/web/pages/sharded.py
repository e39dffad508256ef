"""Sharded queues: their counts, consumers, longest streams and heaviest shard keys, and their dead
letters."""

from __future__ import annotations

from starlette.responses import Response

from fairlead.clock import to_micros
from fairlead.web.api.sharded_operations import (
    MOST_LETTERS,
    MOST_NAME,
    has_audit,
    queue_named,
    shown_fields,
    view,
    views,
)
from fairlead.web.page import Page
from fairlead.web.refusals import Refusal
from fairlead.web.routing import Navigation, ScreenRoute, screen

NAVIGATION = Navigation(title="Sharded", route="sharded", order=60)


def routes() -> list[ScreenRoute]:
    """Return the routes of these screens."""
    return [
        screen("/sharded", show_queues, name="sharded"),
        screen("/sharded/queue", show_queue, name="sharded_queue"),
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
        is_audited=has_audit(page),
        now=page.context.clock.now(),
        **page.pager(letters[-1].position if len(letters) == rows else None),
    )
