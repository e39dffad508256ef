"""Operations of the JSON API that change something. Each leaves an entry in the audit log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from fairlead.model import TaskRecord
from fairlead.operate.actions import Preview
from fairlead.operate.changes import MOST_KEYS, SetLimits, SetWeights
from fairlead.operate.policies import PolicyManagement
from fairlead.operate.store.actions import BulkAction
from fairlead.operate.store.policies import SwitchMode
from fairlead.operate.tenants import MatchingTenants, matching_tenants
from fairlead.ports.task_records import TaskFilter
from fairlead.web.api import bodies, documents
from fairlead.web.api.bodies import (
    VALUES,
    Body,
    Slots,
    Text,
    Version,
    Weight,
    Why,
    change_of,
    filters_of_body,
)
from fairlead.web.api.operations import MOST_ID, Act, act
from fairlead.web.api.reads import shown_action
from fairlead.web.inputs import BadInput
from fairlead.web.masking import check_search
from fairlead.web.page import Page
from fairlead.web.refusals import Refusal

_EFFECTS = {
    "retry": "Run {} now, and count {} tries from zero.",
    "resume": "Run {} now.",
    "reschedule": "Give {} another time.",
    "change": "Give {} another priority or fairness key.",
    "cancel": "End {} as CANCELLED; a running handler is stopped.",
    "fail": "End {} as FAILED.",
}

ACTS: list[Act] = []
"""All operations that change something."""
_act = partial(act, ACTS)


# tasks --------------------------------------------------------------------------------------------


def _one(verb: str) -> Callable[[Page, Any], TaskRecord]:
    def change(page: Page, body: Any) -> TaskRecord:
        id = str(page.request.path_params["id"])
        made = change_of(verb, body, page.access.name)
        page.management.apply(made, id, body.version, tenants=page.access.tenants)
        return page.management.show(id, tenants=page.access.tenants)

    return change


def _named(verb: str) -> Callable[[Page, Any], documents.ChangedTasks]:
    def change(page: Page, body: Any) -> documents.ChangedTasks:
        made = change_of(verb, body, page.access.name)
        results = page.management.apply_all(made, body.ids, tenants=page.access.tenants)
        outcomes = [
            documents.TaskOutcome(id=id, error=None if error is None else str(error))
            for id, error in results.items()
        ]
        refused = sum(outcome.error is not None for outcome in outcomes)
        return documents.ChangedTasks(
            changed=len(outcomes) - refused, refused=refused, outcomes=outcomes
        )

    return change


def _where(page: Page, body: Any) -> TaskFilter:
    given = filters_of_body(body.filter)
    if not any(given.values()) and not body.all:  # an empty text, or no age, selects all tasks too
        raise BadInput('filter: without a condition it selects all tasks; confirm by "all": true')
    filters = check_search(page.parts.settings.mask, given)
    return page.management.where(**filters)


def _matching(verb: str) -> Callable[[Page, Any], BulkAction]:
    def ask(page: Page, body: Any) -> BulkAction:
        asked = page.management.actions.ask(
            change_of(verb, body, page.access.name),
            _where(page, body),
            limit=body.limit,
            tenants=page.access.tenants,
        )
        return shown_action(asked)

    return ask


def _preview(verb: str) -> Callable[[Page, Any], Preview]:
    def preview(page: Page, body: Any) -> Preview:
        return page.management.actions.preview(
            change_of(verb, body, page.access.name),
            _where(page, body),
            limit=body.limit,
            tenants=page.access.tenants,
        )

    return preview


def _on_tasks(verb: str) -> tuple[Act, ...]:
    """Return the operations that make one kind of change."""
    matching = bodies.matching_body(verb)
    effect = _EFFECTS[verb]
    return (
        Act(
            name=f"{verb}_task",
            path=f"/tasks/{{id}}/{verb}",
            summary=effect.format("a task", "its"),
            result=TaskRecord,
            respond=_one(verb),
            action=verb,
            body=bodies.one_body(verb),
            scoped=True,
        ),
        Act(
            name=f"{verb}_tasks",
            path=f"/tasks/{verb}",
            summary=effect.format("the named tasks", "their"),
            result=documents.ChangedTasks,
            respond=_named(verb),
            action=verb,
            body=bodies.named_body(verb),
            scoped=True,
        ),
        Act(
            name=f"{verb}_matching",
            path=f"/actions/{verb}",
            summary=effect.format("all tasks that match", "their")
            + " A worker does it in batches.",
            result=BulkAction,
            respond=_matching(verb),
            action=verb,
            body=matching,
            scoped=True,
            status=202,
        ),
        Act(
            name=f"preview_{verb}",
            path=f"/actions/{verb}/preview",
            summary=f"Count the tasks that {verb} would change, up to 1,000. Changes nothing.",
            result=Preview,
            respond=_preview(verb),
            action=verb,
            body=matching,
            scoped=True,
        ),
    )


for verb in VALUES:
    ACTS += _on_tasks(verb)


# bulk actions -------------------------------------------------------------------------------------


def _action_id(page: Page) -> int:
    text = str(page.request.path_params["id"])
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= MOST_ID):
        raise BadInput("id: use the id of a bulk action")
    return int(text)


def _allowed(page: Page) -> int:
    """Return the id of a bulk action whose verb the viewer may do. Raise Refusal."""
    id = _action_id(page)
    verb = page.management.actions.show(id, tenants=page.access.tenants).verb
    if not page.access.may(verb):
        raise Refusal(403, "Not allowed", f"Your access does not include the action {verb}.")
    return id


@_act("/actions/{id}/interrupt", action="cancel", scoped=True)
def interrupt_action(page: Page) -> BulkAction:
    """Stop a bulk action after its present batch."""
    id, tenants = _allowed(page), page.access.tenants
    done = page.management.actions.interrupt(id, actor=page.access.name, tenants=tenants)
    return shown_action(done)


@_act("/actions/{id}/resume", action="retry", scoped=True)
def resume_action(page: Page) -> BulkAction:
    """Let a worker go on with a bulk action. Needs the action of its change too."""
    id, tenants = _allowed(page), page.access.tenants
    done = page.management.actions.resume(
        id, actor=page.access.name, is_here=False, tenants=tenants
    )
    return shown_action(done)


# queues -------------------------------------------------------------------------------------------


@_act("/queues/pause", action="pause")
def pause_queue(page: Page, *, queue: Text) -> None:
    """Start no further tasks of a queue, in the whole cluster."""
    page.management.pause(queue, actor=page.access.name)


@_act("/queues/resume", action="pause")
def resume_queue(page: Page, *, queue: Text) -> None:
    """Start tasks of a queue again."""
    page.management.unpause(queue, actor=page.access.name)


@_act("/queues/weight", action="weight")
def set_weight(page: Page, *, queue: Text, fairness_key: Text, weight: Weight | None) -> None:
    """Set the weight of a fairness key in a queue; null returns to the weights of its tasks."""
    page.management.set_weight(queue, fairness_key, weight, actor=page.access.name)


@_act("/queues/limit", action="limit")
def set_limit(page: Page, *, queue: Text, fairness_key: Text, limit: Slots | None) -> None:
    """Set how many tasks of a fairness key each node runs at once; null lifts the limit."""
    page.management.set_limit(queue, fairness_key, limit, actor=page.access.name)


# tenants ------------------------------------------------------------------------------------------


class TenantSearch(Body, frozen=True, kw_only=True):
    """All tenants with a part of `queue`, and with `search` in their names; an absent one selects
    any."""

    queue: Text | None = None
    search: Text | None = None


Names = Annotated[list[Text], Meta(min_length=1, max_length=MOST_KEYS)]


@_act("/tenants/weight", action="weight", status=202)
def weight_tenants(
    page: Page,
    *,
    queue: Text,
    weight: Weight | None,
    names: Names | None = None,
    matching: TenantSearch | None = None,
) -> BulkAction:
    """Set the weight of tenants in a queue; null clears it. A worker does it in batches."""
    keys = tuple(_chosen(page, names, matching).names)
    change = SetWeights(queue=queue, keys=keys, weight=weight, actor=page.access.name)
    return shown_action(page.management.actions.ask(change))


@_act("/tenants/limit", action="limit", status=202)
def limit_tenants(
    page: Page,
    *,
    queue: Text,
    limit: Slots | None,
    names: Names | None = None,
    matching: TenantSearch | None = None,
) -> BulkAction:
    """Set the limit of tenants in a queue; null clears it. A worker does it in batches."""
    keys = tuple(_chosen(page, names, matching).names)
    change = SetLimits(queue=queue, keys=keys, limit=limit, actor=page.access.name)
    return shown_action(page.management.actions.ask(change))


@_act("/tenants/weight/preview", action="weight", name="preview_weight_tenants")
@_act("/tenants/limit/preview", action="limit", name="preview_limit_tenants")
def preview_tenants(
    page: Page, *, names: Names | None = None, matching: TenantSearch | None = None
) -> documents.TenantPreview:
    """Count the tenants that would be changed. Changes nothing."""
    found = _chosen(page, names, matching)
    return documents.TenantPreview(
        number=len(found.names), first=found.names[:5], is_sample=found.is_sample
    )


def _chosen(page: Page, names: list[str] | None, matching: TenantSearch | None) -> MatchingTenants:
    """Return the tenants that are named, each once, or that a search finds. Raise BadInput."""
    if names is not None and matching is None:
        return MatchingTenants(names=list(dict.fromkeys(names)), is_sample=False)
    if names is not None or matching is None:
        raise BadInput("give names, or matching")
    return matching_tenants(
        page.context, queue=matching.queue, search=matching.search, facts=page.facts
    )


# periodic tasks and policies ----------------------------------------------------------------------


@_act("/periodic/run", action="periodic")
def run_periodic(page: Page, *, name: Text) -> documents.Submitted:
    """Submit the task of a periodic task once, now."""
    return documents.Submitted(id=page.management.periodic.run(name, actor=page.access.name).id)


@_act("/periodic/pause", action="periodic")
def pause_periodic(page: Page, *, name: Text) -> None:
    """Submit no slot of a periodic task until it is resumed."""
    page.management.periodic.pause(name, actor=page.access.name)


@_act("/periodic/resume", action="periodic")
def resume_periodic(page: Page, *, name: Text) -> None:
    """Submit the slots of a periodic task again."""
    page.management.periodic.resume(name, actor=page.access.name)


@_act("/periodic/remove", action="periodic")
def remove_periodic(page: Page, *, name: Text) -> None:
    """Remove a periodic task that no worker declares."""
    page.management.periodic.remove(name, actor=page.access.name)


@_act("/policies/approve", action="policy")
def approve_policy(page: Page, *, version: Version, why: Why) -> None:
    """Keep the version that is in force after its canary window."""
    management = PolicyManagement(page.context)
    management.policy(_version(version))
    management.keep(_version(version), f"approved by {page.access.name}: {why}")


@_act("/policies/roll-back", action="policy")
def roll_back_policy(
    page: Page, *, to: Version, queue: Text, why: Why
) -> documents.PublishedPolicy:
    """Put the weights of an earlier version back in force, or the declared ones for "0"."""
    version = PolicyManagement(page.context).roll_back_to(
        _version(to), page.access.name, why, queue
    )
    return documents.PublishedPolicy(version=version)


@_act("/policies/switch", action="policy")
def switch_tuning(page: Page, *, mode: SwitchMode, queue: Text = "", why: Why) -> None:
    """Set the kill switch of a queue, or of all."""
    PolicyManagement(page.context).switch(mode, page.access.name, why, queue)


@_act("/policies/switch-on", action="policy")
def switch_on_tuning(page: Page, *, queue: Text = "") -> documents.Done:
    """Remove the kill switch of a queue, or of all; `done` says whether one was set."""
    done = PolicyManagement(page.context).switch_on(queue, author=page.access.name)
    return documents.Done(done=done)


def _version(text: str) -> int:
    if int(text) > MOST_ID:
        raise BadInput(f"version {text}: use a version of the list")
    return int(text)
