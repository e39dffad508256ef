"""Records and tables of other versions: those that a later one writes while workers of this one still
run, and those of an earlier one."""

from __future__ import annotations

import msgspec
import pytest

from fairlead import App, Incident
from fairlead.core.incident_ledger import LedgerEntry
from fairlead.engine.incidents import IncidentDelivery
from fairlead.errors import SchemaMismatch
from fairlead.operate.doctor import examine
from fairlead.ports.observer import Silent
from fairlead.ports.statements import Statement, Steps
from fairlead.testing.contract.task_store import in_error

pytestmark = pytest.mark.stores

LATER = """
INSERT INTO fairlead_incidents (kind, subject, version, queue, name, since, seen_at, details, deliver_at)
VALUES ('later_kind', 'mail', 0, 'mail', '', 5, 5, 'why', 0)
"""


def run_sql(app: App, sql: str) -> None:
    def steps() -> Steps[None]:
        yield Statement(sql)

    app.sql_store.database.run(steps())


async def test_an_incident_of_a_kind_that_only_a_later_version_knows_holds_up_no_other(
    app: App,
) -> None:
    seen: list[Incident] = []
    app.on_incident = seen.append
    run_sql(app, LATER)
    (failed,) = await in_error(app.store, 1)
    delivering = IncidentDelivery(app.store.incidents, Silent(), app.clock, app.on_incident, 30.0)
    await delivering.round()
    assert {(incident.kind, incident.subject) for incident in seen} == {
        ("later_kind", "mail"),
        ("error", failed),
    }
    latest = app.store.database.read_now(app.store.incidents.latest(None, 9))
    assert {incident.kind for incident in latest} == {"later_kind", "error"}
    await app.store.database.close_async()


async def test_the_doctor_names_an_incident_of_a_kind_that_only_a_later_version_knows(
    app: App,
) -> None:
    app.on_incident = lambda incident: None
    run_sql(app, LATER)
    findings = [finding.what for finding in await examine(app.operate_context)]
    assert any("later_kind of mail" in what for what in findings)
    await app.store.database.close_async()


def test_tables_of_an_earlier_development_version_are_refused_with_a_cure_that_helps(
    app: App,
) -> None:
    database = app.sql_store.database
    run_sql(app, "ALTER TABLE fairlead_nodes DROP COLUMN slots")
    app.migrate()  # the migration has the same number and name, so there is nothing to do
    with pytest.raises(SchemaMismatch, match="slots.*make a new database"):
        database.read_now(app.store.nodes())


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
