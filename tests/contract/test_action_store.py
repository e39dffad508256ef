"""Promises of `fairlead.operate.store.actions.ActionStore` and `fairlead.operate.store.audit.AuditLog`,
for both stores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import msgspec

from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.model import State
from fairlead.operate.store.actions import ActionDraft, ActionState, ActionStore, BulkAction
from fairlead.operate.store.audit import AuditDraft, AuditLog, AuditOutcome
from fairlead.ports.statements import Steps
from fairlead.ports.task_records import TaskFilter

NOW = 1_700_000_000_000_000


def add(store: SqlTaskStore, **given: Any) -> BulkAction:
    draft = {
        "verb": "retry",
        "change": '{"verb":"retry"}',
        "where": TaskFilter(state=State.ERROR, fairness_key="a%_'\"\\", older_than=NOW),
        "actor": "Ada \N{SNOWMAN}",
        "asked_at": NOW,
    }
    return store.database.run(ActionStore(store.database).add(ActionDraft(**draft | given)))


def saved(store: SqlTaskStore, action: BulkAction, **changes: Any) -> BulkAction:
    after = msgspec.structs.replace(action, **changes)
    store.database.run(ActionStore(store.database).save(after))
    return after


def test_an_action_is_read_as_it_was_added_and_saved(store: SqlTaskStore) -> None:
    action = add(store, tenants=("acme", "b'c"), most=7)
    assert action.state == ActionState.WAITING and action.version == 0
    read = ActionStore(store.database).action(action.id)
    assert store.database.read_now(read) == action
    after = saved(
        store,
        action,
        state=ActionState.FAILED,
        is_stopping=True,
        version=3,
        performer="here 1",
        expires_at=NOW + 1,
        cursor="01938d2c-0000-7000-8000-000000000000",
        looked=1 << 40,
        changed=2,
        refused=3,
        error="boom",
        ended_at=NOW + 2,
    )
    assert store.database.read_now(ActionStore(store.database).action(action.id)) == after
    assert store.database.read_now(ActionStore(store.database).action(action.id + 1)) is None


def test_actions_are_listed_newest_first_by_cursor_and_by_tenants(store: SqlTaskStore) -> None:
    scopes = [None, ("acme",), ("acme", "other"), (), ("else",)]
    ids = [add(store, tenants=tenants).id for tenants in scopes]

    def listed(before: int | None, limit: int, tenants: set[str] | None = None) -> list[int]:
        found = store.database.read_now(ActionStore(store.database).actions(before, limit, tenants))
        return [action.id for action in found]

    assert listed(None, 10) == ids[::-1]
    assert listed(None, 2) == ids[:2:-1]
    assert listed(ids[3], 2) == [ids[2], ids[1]]
    assert listed(None, 10, {"acme"}) == [ids[3], ids[1]]
    assert listed(None, 10, {"acme", "other"}) == [ids[3], ids[2], ids[1]]
    assert listed(None, 10, set()) == [ids[3]]


def test_actions_without_a_performer_are_found_oldest_first(store: SqlTaskStore) -> None:
    waiting, expired, held, done, stopped = (add(store) for _ in range(5))
    saved(store, expired, state=ActionState.RUNNING, expires_at=NOW)
    saved(store, held, state=ActionState.RUNNING, expires_at=NOW + 1)
    saved(store, done, state=ActionState.DONE, ended_at=NOW)
    saved(store, stopped, state=ActionState.INTERRUPTED, ended_at=NOW)
    find = ActionStore(store.database).unperformed
    assert [each.id for each in store.database.read_now(find(NOW, 9))] == [waiting.id, expired.id]
    assert [each.id for each in store.database.read_now(find(NOW, 1))] == [waiting.id]


def test_an_action_is_held_at_its_version_only(store: SqlTaskStore) -> None:
    action = add(store)
    hold = ActionStore(store.database).hold
    assert store.database.run(hold(action.id, 0)) == action
    assert store.database.run(hold(action.id, None)) == action
    assert store.database.run(hold(action.id, 1)) is None
    assert store.database.run(hold(action.id + 1, None)) is None


def test_of_two_transactions_that_hold_an_action_one_waits_for_the_other(
    store: SqlTaskStore,
) -> None:
    action, is_held, may_go_on = add(store), Event(), Event()

    def claim(waits: bool) -> Steps[bool]:
        held = yield from ActionStore(store.database).hold(action.id, 0)
        if held is None:
            return False
        if waits:
            is_held.set()
            may_go_on.wait()
        yield from ActionStore(store.database).save(msgspec.structs.replace(held, version=1))
        return True

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(store.database.run, claim(True))
        is_held.wait()
        second = threads.submit(store.database.run, claim(False))
        may_go_on.set()
        assert first.result() and not second.result()


def test_old_actions_are_deleted_when_they_are_over(store: SqlTaskStore) -> None:
    actions, database = ActionStore(store.database), store.database
    open_, old, young = (add(store) for _ in range(3))
    assert not database.read_now(actions.has_old(NOW))
    saved(store, old, state=ActionState.DONE, ended_at=NOW - 1)
    saved(store, young, state=ActionState.DONE, ended_at=NOW)
    assert database.read_now(actions.has_old(NOW))
    assert database.run(actions.clean(NOW, 10)) == 1
    left = database.read_now(actions.actions(None, 10, None))
    assert [each.id for each in left] == [young.id, open_.id]


def test_entries_are_listed_newest_first_and_found_by_each_field(store: SqlTaskStore) -> None:
    log, database = AuditLog(store.database), store.database
    drafts = [
        AuditDraft(at=NOW, actor="Ada", verb="retry", task_id="t1", fairness_key="acme/x"),
        AuditDraft(at=NOW + 1, actor="Ada", verb="pause_queue", queue="mail"),
        AuditDraft(
            at=NOW + 2,
            actor="Bob",
            verb="retry",
            outcome=AuditOutcome.REFUSED,
            fairness_key="other",
            details="it is DONE",
        ),
        AuditDraft(at=NOW + 3, actor="Bob", verb="cancel", action=7, subject="nightly"),
    ]
    database.run(log.add(drafts))
    database.run(log.add([]))

    def found(tenants: Any = None, before: Any = None, **where: Any) -> list[AuditDraft]:
        entries = database.read_now(log.entries(where, tenants, before, 10))
        return [
            AuditDraft(**{k: v for k, v in msgspec.structs.asdict(each).items() if k != "id"})
            for each in entries
        ]

    assert found() == drafts[::-1]
    newest = database.read_now(log.entries({}, None, None, 2))
    assert found(before=newest[-1].id) == drafts[1::-1]
    assert found(actor="Ada") == drafts[1::-1]
    assert found(verb="retry") == [drafts[2], drafts[0]]
    assert found(task_id="t1") == found(tenants={"acme"}) == found(fairness_key="acme/x")
    assert found(task_id="t1") == drafts[:1]
    assert found(queue="mail") == drafts[1:2]
    assert found(action=7) == drafts[3:]
    assert found(tenants=set()) == []


def test_old_entries_are_deleted_in_batches(store: SqlTaskStore) -> None:
    log, database = AuditLog(store.database), store.database
    assert not database.read_now(log.has_old(NOW))
    database.run(log.add([AuditDraft(at=NOW + n, actor="Ada", verb="retry") for n in range(5)]))
    assert not database.read_now(log.has_old(NOW))
    assert database.read_now(log.has_old(NOW + 3))
    assert database.run(log.clean(NOW + 3, 2)) == 2
    assert database.run(log.clean(NOW + 3, 2)) == 1
    left = database.read_now(log.entries({}, None, None, 10))
    assert [each.at for each in left] == [NOW + 4, NOW + 3]
