"""Operations of the JSON API that change something. Each leaves an entry in the audit log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairlead.model import TaskRecord
from fairlead.operate.actions import Preview
from fairlead.operate.changes import SetLimits, SetWeights
from fairlead.operate.policies import PolicyManagement
from fairlead.operate.store.actions import BulkAction
from fairlead.operate.tenants import MatchingTenants, matching_tenants
from fairlead.ports.task_records import TaskFilter
from fairlead.web.api import bodies, documents
from fairlead.web.api.bodies import VALUES, change_of, filters_of_body
from fairlead.web.api.operations import MOST_ID, Act
from fairlead.web.api.reads import shown_action
from fairlead.web.inputs import BadInput
from fairlead.web.masking import check_search
from fairlead.web.page import Page
from fairlead.web.refusals import Refusal

_EFFECTS = {
    "retry": "Run {} now, and count their tries from zero.",
    "resume": "Run {} now.",
    "reschedule": "Give {} another time.",
    "change": "Give {} another priority or fairness key.",
    "cancel": "End {} as CANCELLED; running handlers are stopped.",
    "fail": "End {} as FAILED.",
}


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
    if not given and not body.all:
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
            summary=effect.format("a task")
            .replace("their", "its")
            .replace("handlers are", "one is"),
            result=TaskRecord,
            respond=_one(verb),
            action=verb,
            body=bodies.one_body(verb),
            scoped=True,
        ),
        Act(
            name=f"{verb}_tasks",
            path=f"/tasks/{verb}",
            summary=effect.format("the named tasks"),
            result=documents.ChangedTasks,
            respond=_named(verb),
            action=verb,
            body=bodies.named_body(verb),
            scoped=True,
        ),
        Act(
            name=f"{verb}_matching",
            path=f"/actions/{verb}",
            summary=f"{effect.format('all tasks that match')} A worker does it in batches.",
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


def _interrupt(page: Page, _: Any) -> BulkAction:
    id, tenants = _allowed(page), page.access.tenants
    done = page.management.actions.interrupt(id, actor=page.access.name, tenants=tenants)
    return shown_action(done)


def _resume(page: Page, _: Any) -> BulkAction:
    id, tenants = _allowed(page), page.access.tenants
    done = page.management.actions.resume(
        id, actor=page.access.name, is_here=False, tenants=tenants
    )
    return shown_action(done)


# queues, periodic tasks, policies -----------------------------------------------------------------


def _tenants(page: Page, body: bodies.ChosenTenants) -> MatchingTenants:
    """Return the tenants that a body is about, each once. Raise BadInput."""
    if (body.names is None) is (body.matching is None):
        raise BadInput("give names, or matching")
    if body.matching is None:
        names = list(dict.fromkeys(body.names or ()))
        return MatchingTenants(names=names, is_sample=False)
    return matching_tenants(
        page.context, queue=body.matching.queue, search=body.matching.search, facts=page.facts
    )


def _set_weights(page: Page, body: bodies.NewWeights) -> BulkAction:
    names = tuple(_tenants(page, body).names)
    change = SetWeights(queue=body.queue, keys=names, weight=body.weight, actor=page.access.name)
    return shown_action(page.management.actions.ask(change))


def _set_limits(page: Page, body: bodies.NewLimits) -> BulkAction:
    names = tuple(_tenants(page, body).names)
    change = SetLimits(queue=body.queue, keys=names, limit=body.limit, actor=page.access.name)
    return shown_action(page.management.actions.ask(change))


def _preview_tenants(page: Page, body: bodies.ChosenTenants) -> documents.TenantPreview:
    found = _tenants(page, body)
    return documents.TenantPreview(
        number=len(found.names), first=found.names[:5], is_sample=found.is_sample
    )


def _run_periodic(page: Page, body: bodies.PeriodicName) -> documents.Submitted:
    handle = page.management.periodic.run(body.name, actor=page.access.name)
    return documents.Submitted(id=handle.id)


def _approve(page: Page, body: bodies.Approval) -> None:
    management = PolicyManagement(page.context)
    management.policy(_version(body.version))
    management.keep(_version(body.version), f"approved by {page.access.name}: {body.why}")


def _roll_back(page: Page, body: bodies.Rollback) -> documents.PublishedPolicy:
    version = PolicyManagement(page.context).roll_back_to(
        _version(body.to), page.access.name, body.why, body.queue
    )
    return documents.PublishedPolicy(version=version)


def _switch_on(page: Page, body: bodies.SwitchedQueue) -> documents.Done:
    done = PolicyManagement(page.context).switch_on(body.queue, author=page.access.name)
    return documents.Done(done=done)


def _version(text: str) -> int:
    if int(text) > MOST_ID:
        raise BadInput(f"version {text}: use a version of the list")
    return int(text)


ACTS: tuple[Act, ...] = (
    *(act for verb in VALUES for act in _on_tasks(verb)),
    Act(
        "interrupt_action",
        "/actions/{id}/interrupt",
        "Stop a bulk action after its present batch.",
        "cancel",
        None,
        _interrupt,
        BulkAction,
        scoped=True,
    ),
    Act(
        "resume_action",
        "/actions/{id}/resume",
        "Let a worker go on with a bulk action. Needs the action of its change too.",
        "retry",
        None,
        _resume,
        BulkAction,
        scoped=True,
    ),
    Act(
        "pause_queue",
        "/queues/pause",
        "Start no further tasks of a queue, in the whole cluster.",
        "pause",
        bodies.QueueName,
        lambda page, body: page.management.pause(body.queue, actor=page.access.name),
    ),
    Act(
        "resume_queue",
        "/queues/resume",
        "Start tasks of a queue again.",
        "pause",
        bodies.QueueName,
        lambda page, body: page.management.unpause(body.queue, actor=page.access.name),
    ),
    Act(
        "set_weight",
        "/queues/weight",
        "Set the weight of a fairness key in a queue, or return to the weights of its tasks.",
        "weight",
        bodies.NewWeight,
        lambda page, body: page.management.set_weight(
            body.queue, body.fairness_key, body.weight, actor=page.access.name
        ),
    ),
    Act(
        "set_limit",
        "/queues/limit",
        "Set how many tasks of a fairness key each node runs at once, or lift the limit.",
        "limit",
        bodies.NewLimit,
        lambda page, body: page.management.set_limit(
            body.queue, body.fairness_key, body.limit, actor=page.access.name
        ),
    ),
    *(
        act
        for verb, body, respond in (
            ("weight", bodies.NewWeights, _set_weights),
            ("limit", bodies.NewLimits, _set_limits),
        )
        for act in (
            Act(
                f"{verb}_tenants",
                f"/tenants/{verb}",
                f"Set the {verb} of tenants in a queue, or clear it. A worker does it in batches.",
                verb,
                body,
                respond,
                BulkAction,
                202,
            ),
            Act(
                f"preview_{verb}_tenants",
                f"/tenants/{verb}/preview",
                f"Count the tenants whose {verb} would be set. Changes nothing.",
                verb,
                bodies.ChosenTenants,
                _preview_tenants,
                documents.TenantPreview,
            ),
        )
    ),
    Act(
        "run_periodic",
        "/periodic/run",
        "Submit the task of a periodic task once, now.",
        "periodic",
        bodies.PeriodicName,
        _run_periodic,
        documents.Submitted,
    ),
    Act(
        "pause_periodic",
        "/periodic/pause",
        "Submit no slot of a periodic task until it is resumed.",
        "periodic",
        bodies.PeriodicName,
        lambda page, body: page.management.periodic.pause(body.name, actor=page.access.name),
    ),
    Act(
        "resume_periodic",
        "/periodic/resume",
        "Submit the slots of a periodic task again.",
        "periodic",
        bodies.PeriodicName,
        lambda page, body: page.management.periodic.resume(body.name, actor=page.access.name),
    ),
    Act(
        "remove_periodic",
        "/periodic/remove",
        "Remove a periodic task that no worker declares.",
        "periodic",
        bodies.PeriodicName,
        lambda page, body: page.management.periodic.remove(body.name, actor=page.access.name),
    ),
    Act(
        "approve_policy",
        "/policies/approve",
        "Keep the version that is in force after its canary window.",
        "policy",
        bodies.Approval,
        _approve,
    ),
    Act(
        "roll_back_policy",
        "/policies/roll-back",
        "Put the weights and limits of an earlier version back in force, as a new version.",
        "policy",
        bodies.Rollback,
        _roll_back,
        documents.PublishedPolicy,
    ),
    Act(
        "switch_tuning",
        "/policies/switch",
        "Set the kill switch of a queue, or of all.",
        "policy",
        bodies.NewSwitch,
        lambda page, body: PolicyManagement(page.context).switch(
            body.mode, page.access.name, body.why, body.queue
        ),
    ),
    Act(
        "switch_on_tuning",
        "/policies/switch-on",
        "Remove the kill switch of a queue, or the one of all; `done` says whether one was set.",
        "policy",
        bodies.SwitchedQueue,
        _switch_on,
    ),
)
"""All operations that change something."""
