"""Operations that change something. Each leaves an entry in the audit log."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from fairlead.clock import to_micros
from fairlead.core import values
from fairlead.errors import InvalidTask, UnknownTask
from fairlead.model import TaskKey, TaskRecord
from fairlead.operate.actions import MOST_COUNTED, MOST_FIRST, Preview
from fairlead.operate.batches import MOST_CHANGED
from fairlead.operate.caller import Caller, NoRight
from fairlead.operate.changes import (
    CHANGES,
    MOST_KEYS,
    Change,
    NewValues,
    Reschedule,
    Resume,
    SetLimits,
    SetWeights,
    StoredChange,
)
from fairlead.operate.filters import instant
from fairlead.operate.operations import (
    Arguments,
    Filter,
    Id,
    Instant,
    Operation,
    Slots,
    Text,
    Version,
    Weight,
    Why,
    arguments_of,
    declare,
    filters_of,
)
from fairlead.operate.policies import PolicyManagement
from fairlead.operate.read_operations import TaskId, shown_action
from fairlead.operate.results import (
    ChangedTasks,
    Done,
    Dropped,
    PublishedPolicy,
    Submitted,
    TaskOutcome,
    TenantPreview,
)
from fairlead.operate.store.actions import BulkAction
from fairlead.operate.store.policies import SwitchMode
from fairlead.operate.tenants import MatchingTenants, TenantSearch, matching_tenants
from fairlead.ports.task_records import TaskFilter

CHANGING: list[Operation] = []
"""All operations that change something."""
_change = partial(declare, CHANGING)


# tasks --------------------------------------------------------------------------------------------


class NoValues(Arguments, frozen=True, kw_only=True):
    """A change without values."""


class ResumeValues(Arguments, frozen=True, kw_only=True):
    """Values of resume."""

    force: Annotated[bool, Meta(description="Also running tasks, which then run twice.")] = False


class RescheduleValues(Arguments, frozen=True, kw_only=True):
    """Values of reschedule."""

    run_at: Annotated[Instant, Meta(description="The new time; a past one means now.")]


class ChangeValues(Arguments, frozen=True, kw_only=True):
    """Values of change; one that is absent stays as it is."""

    priority: Annotated[int, Meta(ge=0, le=9, description="0 (first) to 9 (last).")] | None = None
    new_fairness_key: Text | None = None


TASK_CHANGES: dict[str, tuple[str, type[Arguments], str]] = {
    "retry": (
        "Run {} now, and count {} tries from zero.",
        NoValues,
        "--all --name payout --limit 500",
    ),
    "resume": ("Run {} now.", ResumeValues, "01938d2c-..."),
    "reschedule": (
        "Give {} another time.",
        RescheduleValues,
        "01938d2c-... --run-at 2026-12-24T18:00:00+02:00",
    ),
    "change": (
        "Give {} another priority or fairness key.",
        ChangeValues,
        "--all --fairness-key acme --new-fairness-key acme-bulk",
    ),
    "cancel": (
        "End {} as CANCELLED; a running handler is stopped.",
        NoValues,
        "--all --queue mail --fairness-key acme",
    ),
    "fail": ("End {} as FAILED.", NoValues, "01938d2c-..."),
}
"""Effect, values and example of each change of tasks, by its verb, which is also the right it
needs."""

_TaskVersion = Annotated[int, Meta(ge=0, le=(1 << 31) - 1, description="Only at this version.")]
_Ids = Annotated[list[Text], Meta(min_length=1, max_length=MOST_CHANGED)]
_Limit = Annotated[int, Meta(ge=0, le=values.MOST_ROWS, description="The first so many only.")]
_ONE: list[Any] = [("id", TaskId), ("version", _TaskVersion | None, None)]
_NAMED: list[Any] = [("ids", _Ids), ("version", _TaskVersion | None, None)]
_MATCHING: list[Any] = [
    ("filter", Filter, Filter()),
    ("all", Annotated[bool, Meta(description="All that match, also without a condition.")], False),
    ("limit", _Limit | None, None),
]
_PREVIEW: list[Any] = [*_MATCHING, ("ids", _Ids | None, None)]


def change_of(verb: str, given: dict[str, Any], actor: str) -> Change:
    """Return the change with the values that an operation gets. Raise InvalidTask for an instant
    that no task can have."""
    match verb:
        case "resume":
            return Resume(force=given["force"], actor=actor)
        case "reschedule":
            return Reschedule(run_at=instant("run_at", given["run_at"]), actor=actor)
        case "change":
            key = given["new_fairness_key"]
            return NewValues(priority=given["priority"], fairness_key=key, actor=actor)
        case _:
            return CHANGES[verb](actor=actor)


def _one(verb: str) -> Callable[..., TaskRecord]:
    def change(caller: Caller, *, id: str, version: int | None, **given: Any) -> TaskRecord:
        made, scope = change_of(verb, given, caller.name), caller.tenants
        caller.management.apply(made, id, version, tenants=scope)
        return caller.management.named(id, tenants=scope)

    return change


def _named(verb: str) -> Callable[..., ChangedTasks]:
    def change(
        caller: Caller, *, ids: list[str], version: int | None, **given: Any
    ) -> ChangedTasks:
        if version is not None and len(ids) > 1:
            raise InvalidTask("version: is of one task, and several are named")
        made = change_of(verb, given, caller.name)
        results = caller.management.apply_all(made, ids, version, tenants=caller.tenants)
        outcomes = [
            TaskOutcome(id=id, error=None if error is None else str(error))
            for id, error in results.items()
        ]
        refused = sum(outcome.error is not None for outcome in outcomes)
        return ChangedTasks(changed=len(outcomes) - refused, refused=refused, outcomes=outcomes)

    return change


def _where(caller: Caller, filter: Filter, all: bool) -> TaskFilter:
    given = filters_of(filter)
    if not any(given.values()) and not all:  # an empty text, or no age, selects all tasks too
        raise InvalidTask(
            'filter: without a condition it selects all tasks; confirm by "all": true'
        )
    return caller.management.where(**caller.searchable(given))


def _matching(verb: str) -> Callable[..., BulkAction]:
    def ask(
        caller: Caller, *, filter: Filter, all: bool, limit: int | None, **given: Any
    ) -> BulkAction:
        change = change_of(verb, given, caller.name)
        return _asked(caller, change, _where(caller, filter, all), limit=limit)

    return ask


def _preview(verb: str) -> Callable[..., Preview]:
    def preview(
        caller: Caller,
        *,
        filter: Filter,
        all: bool,
        limit: int | None,
        ids: list[str] | None,
        **given: Any,
    ) -> Preview:
        # Until a person has chosen new values, each task whose state allows the change counts.
        is_open = verb == "change" and set(given.values()) == {None}
        made = change_of(verb, given | {"priority": 0} if is_open else given, caller.name)
        if ids is not None:
            return _preview_named(caller, made, ids)
        return caller.management.actions.preview(
            made,
            _where(caller, filter, all),
            limit=limit,
            tenants=caller.tenants,
            counted=None if caller.is_command else MOST_COUNTED,
            with_any_values=is_open,
        )

    return preview


def _preview_named(caller: Caller, change: Change, ids: list[str]) -> Preview:
    fit = []
    for id in (names := dict.fromkeys(ids)):
        with suppress(InvalidTask, UnknownTask):  # which the change refuses too
            task = caller.management.named(id, tenants=caller.tenants)
            fit += [task] if task.state in change.states else []
    refused = len(names) - len(fit)
    return Preview(changed=len(fit), is_more=False, refused=refused, first=fit[:MOST_FIRST])


def _asked(
    caller: Caller, change: StoredChange, where: TaskFilter | None = None, **given: Any
) -> BulkAction:
    """Ask for a bulk action, which the caller or a worker performs next."""
    actions = caller.management.actions
    tenants = None if where is None else caller.tenants
    asked = actions.ask(change, where, tenants=tenants, is_here=caller.is_command, **given)
    return asked if caller.is_command else shown_action(asked)


def _on_tasks(verb: str) -> list[Operation]:
    """Return the operations that make one kind of change."""
    effect, base, example = TASK_CHANGES[verb]
    named = partial(Operation, right=verb, scoped=True)
    return [
        named(
            name=f"{verb}_task",
            path=f"/tasks/{{id}}/{verb}",
            summary=effect.format("a task", "its"),
            result=TaskRecord,
            function=_one(verb),
            arguments=arguments_of(f"{verb.title()}Task", _ONE, base, base.__doc__),
        ),
        named(
            name=f"{verb}_tasks",
            path=f"/tasks/{verb}",
            summary=effect.format("the named tasks", "their"),
            result=ChangedTasks,
            function=_named(verb),
            arguments=arguments_of(f"{verb.title()}Tasks", _NAMED, base, base.__doc__),
        ),
        named(
            name=f"{verb}_matching",
            path=f"/actions/{verb}",
            summary=effect.format("all tasks that match", "their"),
            result=BulkAction,
            function=_matching(verb),
            arguments=arguments_of(f"{verb.title()}Matching", _MATCHING, base, base.__doc__),
            command=f"tasks {verb}",
            example=example,
            named=f"{verb}_tasks",
            preview=f"preview_{verb}",
            is_queued=True,
            is_idempotent=False,
        ),
        named(
            name=f"preview_{verb}",
            path=f"/actions/{verb}/preview",
            summary=f"Count the tasks that {verb} would change, up to 1,000. Changes nothing.",
            result=Preview,
            function=_preview(verb),
            arguments=arguments_of(f"{verb.title()}Preview", _PREVIEW, base, base.__doc__),
        ),
    ]


for verb in TASK_CHANGES:
    CHANGING += _on_tasks(verb)


# bulk actions -------------------------------------------------------------------------------------


_VERBS = frozenset({*TASK_CHANGES, "weight", "limit"})
"""Rights to the changes that bulk actions make."""


def _check_verb(caller: Caller, id: int) -> None:
    """Raise NoRight if the caller may not do what a bulk action does; UnknownAction."""
    verb = caller.management.actions.show(id, tenants=caller.tenants).verb
    if not caller.may(verb):
        raise NoRight(f"your access does not include the action {verb}")


@_change(
    "/actions/{id}/interrupt",
    command="actions interrupt",
    example="12",
    right=_VERBS,
    scoped=True,
)
def interrupt_action(caller: Caller, *, id: Id) -> BulkAction:
    """Stop a bulk action after its present batch. Needs the right to its change."""
    _check_verb(caller, id)
    actions = caller.management.actions
    return shown_action(actions.interrupt(id, actor=caller.name, tenants=caller.tenants))


@_change(
    "/actions/{id}/resume",
    command="actions resume",
    example="12",
    right=_VERBS,
    scoped=True,
    is_queued=True,
)
def resume_action(
    caller: Caller,
    *,
    id: Id,
    take_over: Annotated[
        bool, Meta(description="Also if a process performs it; that process then stops.")
    ] = False,
) -> BulkAction:
    """Go on with a bulk action that was interrupted. Needs the right to its change."""
    _check_verb(caller, id)
    resumed = caller.management.actions.resume(
        id,
        actor=caller.name,
        take_over=take_over,
        is_here=caller.is_command,
        tenants=caller.tenants,
    )
    return resumed if caller.is_command else shown_action(resumed)


# queues -------------------------------------------------------------------------------------------


@_change("/queues/pause", command="queues pause", example="payouts", right="pause")
def pause_queue(caller: Caller, *, queue: Text) -> None:
    """Start no further tasks of a queue, in the whole cluster."""
    caller.management.pause(queue, actor=caller.name)


@_change("/queues/resume", command="queues resume", example="payouts", right="pause")
def resume_queue(caller: Caller, *, queue: Text) -> None:
    """Start tasks of a queue again."""
    caller.management.unpause(queue, actor=caller.name)


@_change("/queues/weight", right="weight")
def set_weight(caller: Caller, *, queue: Text, fairness_key: Text, weight: Weight | None) -> None:
    """Set the weight of a fairness key in a queue; null returns to the weights of its tasks."""
    caller.management.set_weight(queue, fairness_key, weight, actor=caller.name)


@_change("/queues/limit", right="limit")
def set_limit(caller: Caller, *, queue: Text, fairness_key: Text, limit: Slots | None) -> None:
    """Set how many tasks of a fairness key each node runs at once; null lifts the limit."""
    caller.management.set_limit(queue, fairness_key, limit, actor=caller.name)


# tenants ------------------------------------------------------------------------------------------


Names = Annotated[list[Text], Meta(min_length=1, max_length=MOST_KEYS)]


@_change(
    "/tenants/weight",
    command="tenants weight",
    example="payouts 2.5 acme globex",
    right="weight",
    preview="preview_weight_tenants",
    is_queued=True,
    is_idempotent=False,
)
def weight_tenants(
    caller: Caller,
    *,
    queue: Text,
    weight: Weight | None,
    names: Names | None = None,
    matching: TenantSearch | None = None,
) -> BulkAction:
    """Set the weight of tenants in a queue, or remove what is set."""
    keys = tuple(chosen_tenants(caller, names, matching).names)
    return _asked(caller, SetWeights(queue=queue, keys=keys, weight=weight, actor=caller.name))


@_change(
    "/tenants/limit",
    command="tenants limit",
    example="payouts 5 --search corp- --dry-run",
    right="limit",
    preview="preview_limit_tenants",
    is_queued=True,
    is_idempotent=False,
)
def limit_tenants(
    caller: Caller,
    *,
    queue: Text,
    limit: Slots | None,
    names: Names | None = None,
    matching: TenantSearch | None = None,
) -> BulkAction:
    """Limit how many tasks with exactly the keys of tenants each node runs, or remove limits."""
    keys = tuple(chosen_tenants(caller, names, matching).names)
    return _asked(caller, SetLimits(queue=queue, keys=keys, limit=limit, actor=caller.name))


@_change("/tenants/weight/preview", right="weight", name="preview_weight_tenants")
@_change("/tenants/limit/preview", right="limit", name="preview_limit_tenants")
def preview_tenants(
    caller: Caller, *, names: Names | None = None, matching: TenantSearch | None = None
) -> TenantPreview:
    """Count the tenants that would be changed. Changes nothing."""
    found = chosen_tenants(caller, names, matching)
    return TenantPreview(
        number=len(found.names), first=found.names[:MOST_FIRST], is_sample=found.is_sample
    )


def chosen_tenants(
    caller: Caller, names: list[str] | None, matching: TenantSearch | None
) -> MatchingTenants:
    """Return the tenants that are named, each once, or that a search finds. Raise InvalidTask."""
    if names is not None and matching is None:
        return MatchingTenants(names=list(dict.fromkeys(names)), is_sample=False)
    if names is not None or matching is None:
        raise InvalidTask("give the names of tenants, or a search for them, and not both")
    return matching_tenants(caller.context, matching, facts=caller.facts())


# periodic tasks and policies ----------------------------------------------------------------------


@_change(
    "/periodic/run",
    command="periodic run",
    example="nightly_report --app shop:app",
    right="periodic",
    is_idempotent=False,
)
def run_periodic(caller: Caller, *, name: Text) -> Submitted:
    """Submit the task of a periodic task once, now."""
    return Submitted(id=caller.management.periodic.run(name, actor=caller.name).id)


@_change("/periodic/pause", command="periodic pause", example="nightly_report", right="periodic")
def pause_periodic(caller: Caller, *, name: Text) -> None:
    """Submit no slot of a periodic task until it is resumed."""
    caller.management.periodic.pause(name, actor=caller.name)


@_change("/periodic/resume", command="periodic resume", example="nightly_report", right="periodic")
def resume_periodic(caller: Caller, *, name: Text) -> None:
    """Submit the slots of a periodic task again."""
    caller.management.periodic.resume(name, actor=caller.name)


@_change(
    "/periodic/remove",
    command="periodic remove",
    example="nightly_report",
    right="periodic",
    is_final=True,
)
def remove_periodic(caller: Caller, *, name: Text) -> None:
    """Remove a periodic task that no worker declares."""
    caller.management.periodic.remove(name, actor=caller.name)


@_change(
    None,
    command="ordered drop",
    example="reminders user-7",
    right="cancel",
    is_final=True,
    is_idempotent=False,
)
def drop_ordered(
    caller: Caller,
    *,
    queue: Text,
    ordering_key: Text,
    run_at: Annotated[Text, Meta(description="Its time: ISO 8601, or microseconds since 1970.")]
    | None = None,
    unique_key: Text | None = None,
) -> Dropped:
    """End the first task of an ordering key, or the one with this time and unique key.

    Its state does not matter; the next task of its key can then run. Raise UnknownTask,
    InvalidTask.
    """
    ordered = caller.management.ordered
    if (run_at is None) != (unique_key is None):
        raise InvalidTask(
            "name a task by both run_at and unique_key, or take the first one of its ordering key"
        )
    if run_at is not None and unique_key is not None:
        is_number = run_at.removeprefix("-").isdecimal() and len(run_at) < 20
        at = int(run_at) if is_number else to_micros(values.instant("run_at", run_at, InvalidTask))
        key = TaskKey(at, ordering_key, unique_key)
    else:
        first = caller.wait(ordered.tasks(queue, ordering_key=ordering_key, limit=1))
        if not first:
            raise UnknownTask(
                f"no task of ordering key {ordering_key!r} waits in the schedule of {queue!r}"
            )
        key = first[0].key
    ordered.drop(queue, key, actor=caller.name)
    return Dropped(dropped=key)


@_change("/policies/approve", right="policy")
def approve_policy(caller: Caller, *, version: Version, why: Why) -> None:
    """Keep the version that is in force after its canary window."""
    management = PolicyManagement(caller.context)
    management.policy(int(version))
    management.keep(int(version), f"approved by {caller.name}: {why}")


@_change("/policies/roll-back", right="policy", is_idempotent=False)
def roll_back_policy(caller: Caller, *, to: Version, queue: Text, why: Why) -> PublishedPolicy:
    """Put the weights of an earlier version back in force, or the declared ones for "0"."""
    management = PolicyManagement(caller.context)
    return PublishedPolicy(version=management.roll_back_to(int(to), caller.name, why, queue))


@_change("/policies/switch", right="policy")
def switch_tuning(caller: Caller, *, mode: SwitchMode, queue: Text = "", why: Why) -> None:
    """Set the kill switch of a queue, or of all."""
    PolicyManagement(caller.context).switch(mode, caller.name, why, queue)


@_change("/policies/switch-on", right="policy")
def switch_on_tuning(caller: Caller, *, queue: Text = "") -> Done:
    """Remove the kill switch of a queue, or of all; `done` says whether one was set."""
    return Done(done=PolicyManagement(caller.context).switch_on(queue, author=caller.name))
