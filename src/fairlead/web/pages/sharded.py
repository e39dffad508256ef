"""Sharded queues: their counts, consumers, longest streams and heaviest shard keys, and their dead
letters with what a person does to them; tasks on Redis alone, queue by queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from fairlead.clock import to_micros
from fairlead.errors import FairleadError, NotSupported, UnknownQueue
from fairlead.operate.audit import Recorder
from fairlead.ports.audit_log import AuditOutcome
from fairlead.web.inputs import BadInput
from fairlead.web.page import Page
from fairlead.web.refusals import Refusal
from fairlead.web.routing import Navigation, ScreenRoute, action, screen

if TYPE_CHECKING:
    from fairlead.sharded import Details, Stats, SyncShardedQueue

NAVIGATION = Navigation(title="Sharded", route="sharded", order=60)

MOST_LETTERS = 100
"""Dead letters of one page, and of one action."""
_MOST_FIELDS = 20
_MOST_NAME = 1024
_VERBS = {"requeue": "requeue_dead_letters", "delete": "delete_dead_letters"}


class ShardedView(msgspec.Struct, frozen=True):
    """One sharded queue as the screens show it."""

    name: str
    stats: Stats | None = None
    """Counts, without those of a group where no group is known; None if they cannot be read."""
    details: Details | None = None
    group: str = ""
    trouble: str | None = None
    """Why the queue cannot be read."""


def routes() -> list[ScreenRoute]:
    """Return the routes of these screens."""
    return [
        screen("/sharded", show_queues, name="sharded"),
        screen("/sharded/queue", show_queue, name="sharded_queue"),
        action(
            "/sharded/confirm/requeue",
            confirm_requeue,
            name="sharded_confirm_requeue",
            action="retry",
        ),
        action(
            "/sharded/confirm/delete",
            confirm_delete,
            name="sharded_confirm_delete",
            action="cancel",
        ),
        action("/sharded/requeue", requeue, name="sharded_requeue", action="retry"),
        action("/sharded/delete", delete, name="sharded_delete", action="cancel"),
        action("/sharded/weight", set_weight, name="sharded_weight", action="weight"),
    ]


def show_queues(page: Page) -> Response:
    """Show every sharded queue of the console, and the queues of tasks on Redis alone."""
    queues = page.shared("sharded", lambda: [_view(each) for each in page.parts.sharded.values()])
    tasks = None
    if not has_audit(page):
        tasks = page.shared("tasks on Redis", lambda: page.management.queues())
    return page.render("sharded.html", queues=queues, tasks=tasks, now=page.context.clock.now())


def show_queue(page: Page) -> Response:
    """Show one sharded queue for one of its groups, and a page of its dead letters. Raise Refusal
    for a queue that cannot be read."""
    queue, group = _queue(page, page.query.required("name")), page.query.text("group", _MOST_NAME)
    after, rows = page.query.text("after", 100) or "", min(page.query.rows(), MOST_LETTERS)
    view = page.shared(("sharded", queue.name, group), lambda: _view(queue, group))
    if view.trouble is not None:
        raise Refusal(503, f"{queue.name} cannot be read", view.trouble)
    letters = page.shared(
        ("dead letters", queue.name, after, rows),
        lambda: queue.dead_letter_heads(count=rows, after=after),
    )
    return page.render(
        "sharded_queue.html",
        view=view,
        letters=[
            (letter, to_micros(letter.at), _values(page, queue.name, letter.values))
            for letter in letters
        ],
        first=page.with_query(after=None) if after else None,
        following=page.with_query(after=letters[-1].position) if len(letters) == rows else None,
        is_audited=has_audit(page),
        now=page.context.clock.now(),
    )


def confirm_requeue(page: Page) -> Response:
    """Ask before dead letters are written into the queue again."""
    return _confirm(page, "requeue")


def confirm_delete(page: Page) -> Response:
    """Ask before dead letters are removed for good."""
    return _confirm(page, "delete")


def requeue(page: Page) -> Response:
    """Write the messages of dead letters into the queue again, for all groups."""
    return _perform(page, "requeue")


def delete(page: Page) -> Response:
    """Remove dead letters for good."""
    return _perform(page, "delete")


def set_weight(page: Page) -> Response:
    """Set the weight of a shard key, or return to the weights of its messages."""
    queue, key = _queue(page, page.form.required("name")), page.form.exact("shard_key") or ""
    weight = page.form.number("weight", 0.001, 1000.0)
    verb = "clear_weight" if weight is None else "set_weight"
    _note(page, verb, queue.name, "" if weight is None else f"{weight:g}", key)
    queue.set_weight(key, weight)
    what = "the weights of its messages hold" if weight is None else f"weight {weight:g}"
    return page.done(f"{key or '(no key)'}: {what}.", "sharded_queue", name=queue.name)


def has_audit(page: Page) -> bool:
    """Return whether the store of tasks is a SQL database, which keeps an audit log."""
    try:
        page.context.sql_store.audit()
    except NotSupported:
        return False
    return True


# how ----------------------------------------------------------------------------------------------


def _confirm(page: Page, verb: str) -> Response:
    queue, ids = _queue(page, page.form.required("name")), _ids(page)
    return page.render(
        "sharded_confirm.html",
        verb=verb,
        name=queue.name,
        ids=ids,
        is_audited=has_audit(page),
    )


def _perform(page: Page, verb: str) -> Response:
    queue, ids = _queue(page, page.form.required("name")), _ids(page)
    _note(page, _VERBS[verb], queue.name, " ".join(ids))
    run = queue.requeue_dead_letters if verb == "requeue" else queue.delete_dead_letters
    found = run(*ids)
    done = "is in the queue again" if verb == "requeue" else "is deleted"
    message = f"{len(found)} of {len(ids)}: {done}."
    if len(found) < len(ids):
        message += " The others were not dead letters any more."
    return page.done(message, "sharded_queue", name=queue.name)


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


def _queue(page: Page, name: str) -> SyncShardedQueue:
    found = page.parts.sharded.get(name)
    if found is None:
        raise UnknownQueue(f"this console shows no sharded queue {name!r}: see console(sharded=)")
    return found


def _view(queue: SyncShardedQueue, group: str | None = None) -> ShardedView:
    """Return the queue for a group, by default its first one."""
    try:
        details = queue.details(group or "")
        if group is None and details.groups:
            group = details.groups[0]
            details = queue.details(group)
        return ShardedView(queue.name, queue.stats(group or ""), details, group or "")
    except FairleadError as error:
        return ShardedView(queue.name, trouble=str(error))


def _ids(page: Page) -> list[str]:
    ids = page.form.many("id", MOST_LETTERS)
    if not ids:
        raise BadInput("no dead letter is selected: select some, then choose what to do")
    return ids


def _values(page: Page, name: str, values: Mapping[str, bytes]) -> list[tuple[str, str]]:
    """Return the first fields as text, as `mask` shows them; bytes that are no UTF-8 become
    escapes."""
    text = {field: value.decode(errors="backslashreplace") for field, value in values.items()}
    shown = page.arguments(name, text)
    if not isinstance(shown, Mapping):
        return [("", str(shown))]
    return [(str(field), str(value)) for field, value in list(shown.items())[:_MOST_FIELDS]]
