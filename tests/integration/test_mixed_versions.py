"""Records that a later version writes while workers of this one still run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead import App, Incident, State
from fairlead.core.incident_ledger import LedgerEntry
from fairlead.engine.incidents import IncidentDelivery
from fairlead.engine.poller import PollerContext
from fairlead.engine.settings import Intervals
from fairlead.errors import InvalidTask
from fairlead.operate import pollers
from fairlead.operate.store.actions import ActionState
from fairlead.operate.store.sql import load
from fairlead.ports.statements import Statement, Steps
from fairlead.testing.contract.tasks import in_error
from tests.builders import idle

pytestmark = pytest.mark.stores

LATER = """
INSERT INTO fairlead_incidents (kind, subject, version, queue, name, since, seen_at, details, deliver_at)
VALUES ('later_kind', 'mail', 0, 'mail', '', 5, 5, 'why', 0)
"""


def run_sql(app: App, sql: str, *params: Any) -> None:
    def steps() -> Steps[None]:
        yield Statement(sql, params)

    app.sql_store.database.run(steps())


async def test_an_incident_of_a_kind_that_only_a_later_version_knows_holds_up_no_other(
    app: App,
) -> None:
    seen: list[Incident] = []
    app.on_incident = seen.append
    run_sql(app, LATER)
    (failed,) = await in_error(app.store, 1)
    await IncidentDelivery(app.node().parts.context).round()
    assert {(incident.kind, incident.subject) for incident in seen} == {
        ("later_kind", "mail"),
        ("error", failed),
    }
    latest = app.store.database.read_now(app.store.incidents.latest(None, 9))
    assert {incident.kind for incident in latest} == {"later_kind", "error"}
    await app.store.database.close_async()


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ('{"verb":"cancel","force":true,"later":true}', '{"queue":"default"}'),
        ('{"verb":"cancel","force":true}', '{"queue":"default","later":"x"}'),
        ('{"verb":"cancel","force":true}', '{"argument":{"path":["n"],"value":"1","later":true}}'),
    ],
)
async def test_a_bulk_action_with_a_condition_of_a_later_version_changes_no_task(
    app: App, change: str, where: str
) -> None:
    pay = idle(app, "pay")
    task_id = pay.submit(n=1).id
    add = load("actions.sql", app.sql_store.database)["add"]
    run_sql(app, add, "cancel", change, where, None, None, "ann", 5)
    context = PollerContext(
        cluster=app.operate_context.store,
        clock=app.clock,
        intervals=Intervals(),
        announce=app.channel.announce,
    )
    assert await pollers.perform_actions(context) == 0.0
    (action,) = app.management.actions.list()
    assert (action.state, action.looked) == (ActionState.FAILED, 0)
    assert "resume the action with the version that made it" in (action.error or "")
    with pytest.raises(InvalidTask, match="resume the action with the version that made it"):
        app.management.actions.perform(app.management.actions.resume(action.id))
    assert app.handle(task_id).record().state == State.SUBMITTED
    await app.store.database.close_async()


def test_a_stored_incident_of_a_later_kind_is_read_and_written_unchanged() -> None:
    stored = (
        b'{"incident":{"id":1,"kind":"later_kind","subject":"mail","details":"why","since":5,'
        b'"queue":"mail","name":"","version":0,"deliveries":0,"delivered_at":null,"task":null},'
        b'"seen_at":5,"deliver_at":6}'
    )
    entry = msgspec.json.decode(stored, type=LedgerEntry)
    assert entry.incident.kind == "later_kind"
    assert msgspec.json.encode(entry) == stored
    with pytest.raises(msgspec.ValidationError, match="later kind"):
        msgspec.json.decode(stored.replace(b"later_kind", b"later kind"), type=LedgerEntry)
