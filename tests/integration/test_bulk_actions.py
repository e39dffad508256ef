"""Bulk actions and the audit log through `App.management`, and the poller that goes on with them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from fairlead import App, NoRetry, State
from fairlead.engine.poller import PollerContext
from fairlead.engine.settings import Intervals
from fairlead.errors import InvalidTask, NotAllowed, UnknownAction, UnknownTask
from fairlead.operate import batches, pollers
from fairlead.operate.changes import Cancel, Fail, NewValues, Resume, Retry
from fairlead.operate.policies import PolicyManagement
from fairlead.operate.store.actions import ActionDraft, ActionState, ActionStore, BulkAction
from fairlead.operate.store.audit import AuditEntry, AuditLog
from fairlead.operate.store.policies import SwitchMode
from fairlead.testing import drain, running, settled
from tests.builders import changed_all, idle

pytestmark = pytest.mark.virtual_time

LATER = timedelta(hours=1)


@pytest.fixture
def shop(app: App):
    pay = idle(app, "pay")

    @app.task(name="bad", retry=NoRetry())
    async def bad(n: int) -> None:
        raise ValueError("no")

    return app, pay, bad


def context_of(app: App, **intervals: float) -> PollerContext:
    return PollerContext(
        cluster=app.operate_context.store,
        clock=app.clock,
        intervals=Intervals(**intervals),
        announce=app.channel.announce,
    )


def submit(pay: Any, count: int, key: str = "acme") -> list[str]:
    later = datetime.now(UTC) + LATER
    handles = pay.options(run_at=later, fairness_key=key).submit_many(
        [{"n": n} for n in range(count)]
    )
    return [handle.id for handle in handles]


def verbs(app: App, **where: Any) -> list[tuple[str, str, str]]:
    """Return actor, verb and outcome of the entries, oldest first."""
    found: list[AuditEntry] = app.management.audit.list(**where)
    return [(each.actor, each.verb, each.outcome.value) for each in reversed(found)]


async def test_a_bulk_action_is_a_row_with_its_filter_person_and_counts(shop) -> None:
    app, pay, bad = shop
    submit(pay, 700)
    submit(pay, 1, "other")
    bad.options(fairness_key="acme").submit(n=1)
    await drain(app)
    actions, seen = app.management.actions, []
    action = actions.ask(Fail(actor="Ada"), app.management.where(fairness_key="acme"), is_here=True)
    assert action.state == ActionState.RUNNING
    done = actions.perform(action, on_batch=lambda now: seen.append((now.looked, now.state)))
    assert seen == [(500, ActionState.RUNNING), (701, ActionState.DONE)]
    assert (done.looked, done.changed, done.refused) == (701, 1, 700)
    assert done.actor == "Ada" and done.verb == "fail" and done.where.fairness_key == "acme"
    assert done == actions.show(done.id) == actions.list()[0]
    assert verbs(app, action=done.id) == [("Ada", "fail", "asked")]
    with pytest.raises(UnknownAction, match="no bulk action 99"):
        actions.show(99)


async def test_an_action_is_interrupted_after_its_batch_and_resumed_where_it_stopped(shop) -> None:
    app, pay, bad = shop
    submit(pay, 1200)
    actions = app.management.actions
    action = actions.ask(Cancel(), app.management.where(), is_here=True)

    def interrupt(now: BulkAction) -> None:
        if now.state == ActionState.RUNNING:
            assert actions.interrupt(now.id, actor="Bob").is_stopping

    stopped = actions.perform(action, on_batch=interrupt)
    assert stopped.state == ActionState.INTERRUPTED and not stopped.is_stopping
    assert (stopped.looked, stopped.changed) == (500, 500)
    with pytest.raises(NotAllowed, match="is interrupted: nothing performs it"):
        actions.interrupt(action.id)
    resumed = actions.resume(action.id, actor="Bob")
    with pytest.raises(NotAllowed, match="is performed by"):
        actions.resume(action.id)
    done = actions.perform(resumed)
    assert (done.looked, done.changed, done.state) == (1200, 1200, ActionState.DONE)
    with pytest.raises(NotAllowed, match="is done"):
        actions.resume(action.id)
    assert verbs(app, action=action.id) == [
        ("a person", "cancel", "asked"),
        ("Bob", "interrupt_action", "asked"),
        ("Bob", "resume_action", "done"),
    ]


async def test_ctrl_c_leaves_an_interrupted_action_and_an_error_a_failed_one(shop) -> None:
    app, pay, bad = shop
    submit(pay, 1200)
    actions = app.management.actions

    def raising(error: BaseException) -> Any:
        def on_batch(now: BulkAction) -> None:
            raise error

        return on_batch

    action = actions.ask(Cancel(), app.management.where(), is_here=True)
    with pytest.raises(KeyboardInterrupt):
        actions.perform(action, on_batch=raising(KeyboardInterrupt()))
    assert actions.show(action.id).state == ActionState.INTERRUPTED
    action = actions.resume(action.id)
    with pytest.raises(RuntimeError):
        actions.perform(action, on_batch=raising(RuntimeError("broken")))
    failed = actions.show(action.id)
    assert failed.state == ActionState.FAILED and failed.error == "RuntimeError: broken"
    done = actions.perform(actions.resume(action.id))
    assert (done.changed, done.error) == (1200, None)


async def test_a_worker_performs_an_action_that_waits_and_one_whose_claim_expired(
    shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, pay, bad = shop
    submit(pay, 1200)
    submit(pay, 3, "other")
    actions, context = app.management.actions, context_of(app)
    asked = actions.ask(Resume(actor="Ada"), app.management.where(fairness_key="acme"))
    assert asked.state == ActionState.WAITING
    monkeypatch.setattr(pollers, "MOST_BATCHES", 1)
    assert await pollers.perform_actions(context) == 0.0
    assert (actions.show(asked.id).state, actions.show(asked.id).looked) == (
        ActionState.WAITING,
        500,
    )
    while await pollers.perform_actions(context) is not None:
        pass
    done = actions.show(asked.id)
    assert (done.state, done.changed, done.looked) == (ActionState.DONE, 1200, 1200)
    held = actions.ask(Resume(), app.management.where(fairness_key="other"), is_here=True)
    assert await pollers.perform_actions(context) is None
    assert actions.show(held.id).looked == 0
    with monkeypatch.context() as at_start:
        at_start.setattr(batches, "CLAIM_SECONDS", -1.0)
        expired = actions.ask(Resume(), app.management.where(fairness_key="other"), is_here=True)
    while await pollers.perform_actions(context) is not None:
        pass
    assert actions.show(expired.id).changed == 3
    assert actions.show(held.id).looked == 0


async def test_a_worker_leaves_an_action_that_it_cannot_read_as_failed(shop) -> None:
    app, pay, bad = shop
    store = app.operate_context.sql_store
    action = app.management.actions.ask(Retry(), app.management.where())
    store.database.run(
        ActionStore(store.database).add(
            msgspec.structs.replace(_draft(action), change='{"verb":"paint"}')
        )
    )
    context = context_of(app)
    while await pollers.perform_actions(context) is not None:
        pass
    newest = app.management.actions.list()[0]
    assert newest.state == ActionState.FAILED and "cannot read the change" in str(newest.error)


def _draft(action: BulkAction) -> ActionDraft:
    given = msgspec.structs.asdict(action)
    return ActionDraft(**{name: given[name] for name in ActionDraft.__struct_fields__})


async def test_old_actions_and_entries_are_deleted_with_the_history(shop) -> None:
    app, pay, bad = shop
    submit(pay, 3)
    changed_all(app.management, Cancel())
    open_ = app.management.actions.ask(Cancel(), app.management.where())
    app.management.actions.interrupt(open_.id)
    await pollers.perform_actions(context_of(app, keep_history=3600))
    assert len(app.management.actions.list()) == 2 and len(app.management.audit.list()) == 3
    await asyncio.sleep(1)
    await pollers.perform_actions(context_of(app, keep_history=0))
    assert app.management.actions.list() == app.management.audit.list() == []


async def test_a_tenants_viewer_changes_and_sees_tasks_of_its_own_keys_only(shop) -> None:
    app, pay, bad = shop
    mine, others = submit(pay, 600, "acme/mail"), submit(pay, 600, "acme2")
    management, tenants = app.management, frozenset({"acme"})
    tried = management.actions.preview(
        Cancel(), management.where(), tenants=tenants, limit=550, counted=None
    )
    assert (tried.changed, tried.refused) == (550, 0)
    result = changed_all(management, Cancel(), tenants=tenants, limit=550)
    assert (result.changed, result.refused) == (550, 0)
    assert changed_all(management, Cancel(), tenants=frozenset()).changed == 0
    assert changed_all(management, Cancel(), tenants=tenants).changed == 50
    assert {task.id for task in management.find(limit=2000)} == set(others)
    with pytest.raises(UnknownTask):
        management.apply(Cancel(), others[0], tenants=tenants)
    outcomes = management.apply_all(Cancel(), [others[0], mine[0]], tenants=tenants)
    assert isinstance(outcomes[others[0]], UnknownTask)
    assert isinstance(outcomes[mine[0]], NotAllowed)
    stolen = NewValues(fairness_key="acme2/x")
    for act in (
        lambda: changed_all(management, stolen, tenants=tenants),
        lambda: management.apply(stolen, mine[0], tenants=tenants),
        lambda: management.actions.ask(stolen, management.where(), tenants=tenants),
        lambda: management.actions.preview(stolen, management.where(), tenants=tenants),
    ):
        with pytest.raises(NotAllowed, match="keys of acme only"):
            act()
    everybodys = management.actions.ask(Cancel(), management.where(), is_here=True)
    assert everybodys.id not in {a.id for a in management.actions.list(tenants=tenants)}
    for act in (
        lambda: management.actions.show(everybodys.id, tenants=tenants),
        lambda: management.actions.interrupt(everybodys.id, tenants=tenants),
        lambda: management.actions.resume(everybodys.id, tenants=tenants, take_over=True),
    ):
        with pytest.raises(UnknownAction):
            act()
    assert {e.fairness_key for e in management.audit.list(tenants=tenants)} == {"acme/mail"}


async def test_a_task_that_moves_to_another_tenant_meanwhile_is_not_changed(shop) -> None:
    app, pay, bad = shop
    submit(pay, 501)
    actions, tenants = app.management.actions, frozenset({"acme"})
    action = actions.ask(Cancel(), app.management.where(), tenants=tenants, is_here=True)
    last = max(task.id for task in app.management.find(limit=1000))

    def move(now: BulkAction) -> None:
        if now.looked == 500:
            app.management.change(last, fairness_key="other")

    done = actions.perform(action, on_batch=move)
    assert (done.looked, done.changed, done.refused) == (500, 500, 0)
    assert app.management.show(last).state == State.WAITING


async def test_each_named_task_is_changed_once_and_each_wrong_id_is_refused(shop) -> None:
    app, pay, bad = shop
    first, second = submit(pay, 2, "acme")
    outcomes = app.management.apply_all(Cancel(), [first, first, first[:4], "gone", second])
    assert outcomes[first] is None and outcomes[second] is None
    assert isinstance(outcomes[first[:4]], InvalidTask)
    assert isinstance(outcomes["gone"], UnknownTask)
    for wrong in ([first, "\0"], [first, None]):
        with pytest.raises(InvalidTask):
            app.management.apply_all(Cancel(), wrong)


async def test_a_preview_counts_up_to_a_limit_and_shows_the_first_tasks(shop) -> None:
    app, pay, bad = shop
    ids = sorted(submit(pay, 1203))
    actions, where = app.management.actions, app.management.where()
    seen = actions.preview(Cancel(), where)
    assert (seen.changed, seen.is_more, seen.refused) == (1000, True, 0)
    assert [task.id for task in seen.first] == ids[:5]
    seen = actions.preview(Cancel(), where, counted=1203)
    assert (seen.changed, seen.is_more) == (1203, False)
    seen = actions.preview(Cancel(), where, limit=7)
    assert (seen.changed, seen.is_more) == (7, False)
    seen = actions.preview(Fail(), where)
    assert (seen.changed, seen.is_more, seen.refused, seen.first) == (0, False, 1203, [])
    assert actions.list() == [] and len(app.management.find(limit=2000)) == 1203
    with pytest.raises(InvalidTask, match="finished tasks cannot be cancelled"):
        actions.preview(Cancel(), app.management.where(state=State.DONE))


async def test_each_action_of_a_person_is_noted_with_its_outcome(shop) -> None:
    app, pay, bad = shop
    management = app.management
    ids = submit(pay, 3)
    failing = bad.submit(n=1)
    await drain(app)
    management.change(ids[0], priority=1, actor="Ada")
    management.change(ids[0], priority=1, actor="Ada")  # changes nothing
    management.resume(ids[0], actor="Ada")
    management.reschedule(ids[1], datetime.now(UTC) + LATER, actor="Ada")
    management.cancel(ids[1], actor="Ada")
    with pytest.raises(NotAllowed):
        management.cancel(ids[1], actor="Bob")
    management.retry(failing.id, actor="Ada")
    await drain(app)
    management.fail(failing.id)
    management.pause("default", actor="Ada")
    management.unpause("default", actor="Ada")
    management.set_weight("default", "acme", 2.5, actor="Ada")
    management.set_weight("default", "acme", None, actor="Ada")
    management.set_limit("default", "acme", 3, actor="Ada")
    management.set_limit("default", "acme", None, actor="Ada")
    assert verbs(app) == [
        ("Ada", "change", "done"),
        ("Ada", "resume", "done"),
        ("Ada", "reschedule", "done"),
        ("Ada", "cancel", "done"),
        ("Bob", "cancel", "refused"),
        ("Ada", "retry", "done"),
        ("a person", "fail", "done"),
        ("Ada", "pause_queue", "done"),
        ("Ada", "resume_queue", "done"),
        ("Ada", "set_weight", "done"),
        ("Ada", "clear_weight", "done"),
        ("Ada", "set_limit", "done"),
        ("Ada", "clear_limit", "done"),
    ]
    changed, refused = management.audit.list(task_id=ids[0])[-1], management.audit.list(actor="Bob")
    assert (changed.queue, changed.fairness_key) == ("default", "acme")
    assert changed.details == '{"priority":1}'
    asked = management.actions.ask(NewValues(priority=2, actor="Ada"), management.where())
    assert management.audit.list(action=asked.id)[0].details == '{"priority":2}'
    assert "is CANCELLED: it is finished" in str(refused[0].details)
    weights = management.audit.list(fairness_key="acme", verb="set_weight")
    assert [entry.details for entry in weights] == ["2.5"]
    newest = management.audit.list(limit=2)
    assert management.audit.list(limit=2, before=newest[-1].id)[0].id == newest[-1].id - 1
    with pytest.raises(InvalidTask, match="actor"):
        management.cancel(ids[2], actor=7)  # type: ignore[arg-type]


async def test_a_change_that_is_not_made_is_not_noted_as_done(shop, monkeypatch) -> None:
    app, pay, bad = shop
    ids = submit(pay, 1)
    log = AuditLog

    def broken(self: Any, entries: Any) -> Any:
        raise RuntimeError("the disk is full")
        yield

    monkeypatch.setattr(log, "add", broken)
    with pytest.raises(RuntimeError):
        app.management.cancel(ids[0])
    assert app.management.show(ids[0]).state == State.WAITING


async def test_actions_on_periodic_tasks_and_policies_are_noted(app: App) -> None:
    @app.periodic("0 3 * * *")
    @app.task(name="nightly")
    async def nightly() -> None: ...

    async with running(app) as node:
        await settled(app, node)
    periodic = app.management.periodic
    periodic.pause("nightly", actor="Ada")
    periodic.resume("nightly", actor="Ada")
    periodic.run("nightly", actor="Bob")
    with pytest.raises(UnknownTask):
        periodic.pause("daily", actor="Ada")
    policies = PolicyManagement(app.operate_context)
    policies.switch(SwitchMode.FROZEN, "Ada", "month end", "default")
    assert policies.switch_on("default", "Bob")
    assert not policies.switch_on("default", "Bob")
    assert verbs(app) == [
        ("Ada", "pause_periodic", "done"),
        ("Ada", "resume_periodic", "done"),
        ("Bob", "run_periodic", "asked"),
        ("Ada", "switch_tuning", "done"),
        ("Bob", "switch_on_tuning", "done"),
    ]
    assert app.management.audit.list(queue="default")[-1].details == "frozen: month end"
    assert app.management.audit.list(verb="run_periodic")[0].subject == "nightly"


async def test_every_filter_is_stored_and_none_reaches_tasks_that_come_later(shop) -> None:
    app, pay, bad = shop
    submit(pay, 3)
    management = app.management
    where = management.where(
        argument="n=2",
        tenant="acme",
        submitted_from=datetime.now(UTC) - LATER,
        submitted_before=datetime.now(UTC) + LATER,
        id="0",
    )
    action = management.actions.ask(Cancel(), where, tenants={"acme", "other"}, is_here=True)
    stored = management.actions.show(action.id).where
    assert stored.tenants == ("acme",) and stored.argument == where.argument
    assert stored.submitted_from == where.submitted_from and stored.id_prefix == "0"
    await asyncio.sleep(1)
    submit(pay, 3)
    done = management.actions.perform(action)
    assert (done.looked, done.changed) == (1, 1)
    assert len(management.find(fairness_key="acme")) == 5
