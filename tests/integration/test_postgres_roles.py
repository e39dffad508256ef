"""The grants of docs/how-to/postgresql.md: each role can do its work with exactly these rights."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from fairlead import App, ClusterLimit, Fixed, State
from fairlead.backends.sql.history import SqlHistory
from fairlead.connect import task_store
from fairlead.errors import ConfigurationError
from fairlead.operate.doctor import examine
from fairlead.ordered import repartition
from fairlead.testing import running
from services.postgres import PostgresServer
from tests.builders import idle
from tests.waiting import until, wait_until

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "postgresql.md"
ROLES = ("migrator", "worker", "submitter", "reader", "exporter")
SOON = 60.0  # seconds; a guard against a hang
BASIC = "submitter: every submit"
GROUPS = (
    BASIC,
    "submitter: with unique_key",
    "submitter: with unique_for",
    "submitter: to ordered queues",
    "submitter: states and results of its handles",
)


def grants() -> dict[str, str]:
    """Return the SQL of the page by the comment at its head."""
    blocks = "\n".join(re.findall(r"```sql\n(-- .*?)```", PAGE.read_text(), re.DOTALL))
    parts = re.split(r"^-- (.+)$", blocks, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


class Installation:
    """A database with the roles of the page, which own no rights but the granted ones."""

    def __init__(self, url: str) -> None:
        self.owner_url = url

    def run(self, sql: str) -> None:
        with psycopg.connect(self.owner_url, autocommit=True) as connection:
            connection.execute(sql.encode())

    def grant(self, *names: str) -> None:
        for name in names:
            self.run(grants()[name])

    def url(self, role: str) -> str:
        return re.sub("//[^@]+@", f"//{role}:secret@", self.owner_url)


def with_app(url: str, work: Callable[[App], Any]) -> Any:
    app = App(url)
    try:
        return work(app)
    finally:
        app.close()


@pytest.fixture(scope="module")
def template(postgres_server: PostgresServer) -> Iterator[str]:
    """Create the roles, and a database that the migrator has migrated; yield its name."""
    url = postgres_server.create_database()
    installation = Installation(url)
    installation.run("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    for role in ROLES:
        installation.run(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    installation.grant("migrator")
    with_app(installation.url("migrator"), App.migrate)
    postgres_server.disconnect(url)
    yield url.rpartition("/")[2]
    for role in ROLES:  # other tests compare the settings of all roles
        Installation(postgres_server.url).run(f"ALTER ROLE {role} RESET ALL")


@pytest.fixture
def installed(postgres_server: PostgresServer, template: str) -> Iterator[Installation]:
    url = postgres_server.create_database(template)
    yield Installation(url)
    postgres_server.disconnect(url)


class Submitting:
    """An application whose role may only submit."""

    def __init__(self, url: str) -> None:
        self.app = App(url)
        self.app.queue("moves", kind="ordered")

        @self.app.task
        def note(n: int) -> int:
            return n

        move = idle(self.app, "move", queue="moves")
        self.note, self.move = note, move


@pytest.fixture
def submitter(installed: Installation) -> Iterator[Submitting]:
    installed.grant(BASIC)
    submitting = Submitting(installed.url("submitter"))
    yield submitting
    submitting.app.close()


def count(installed: Installation, table: str = "tasks") -> int:
    with psycopg.connect(installed.owner_url) as connection:
        ((found,),) = connection.execute(f"SELECT count(*) FROM fairlead.fairlead_{table}".encode())
    return int(found)


def rows(number: int) -> list[dict[str, Any]]:
    return [{"n": n} for n in range(number)]


NUMBERS = pytest.mark.parametrize("number", [1, 60])


# submitter ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 60, 1500])
def test_a_submitter_submits_one_and_many(
    submitter: Submitting, installed: Installation, number: int
) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    submitter.note.submit_many(rows(number))
    submitter.note.options(run_at=later, ordering_key="a").submit_many(rows(number))
    assert count(installed) == 2 * number


@NUMBERS
def test_a_submitter_submits_in_its_own_transaction(
    submitter: Submitting, installed: Installation, number: int
) -> None:
    with psycopg.connect(installed.url("submitter")) as connection:
        submitter.note.options(connection=connection).submit_many(rows(number))
        assert count(installed) == 0
    assert count(installed) == number


@NUMBERS
async def test_a_submitter_submits_in_its_own_asyncpg_transaction(
    submitter: Submitting, installed: Installation, number: int
) -> None:
    connection = await asyncpg.connect(installed.url("submitter"))
    async with connection.transaction():
        note = submitter.note.options(connection=connection)
        await note.submit_many_async(rows(number))
    await connection.close()
    assert count(installed) == number


@NUMBERS
def test_a_submitter_claims_unique_keys_and_reads_no_others_tasks(
    submitter: Submitting, installed: Installation, number: int
) -> None:
    note = submitter.note
    drafts = [note.options(unique_key=str(n)).draft(n=n) for n in range(number)]
    with pytest.raises(ConfigurationError, match="fairlead_unique_keys.* has the grants"):
        submitter.app.submit_many(drafts)
    installed.grant("submitter: with unique_key")
    first, again = submitter.app.submit_many(drafts), submitter.app.submit_many(drafts)
    assert [handle.id for handle in first] == [handle.id for handle in again]
    assert (count(installed), count(installed, "unique_keys")) == (number, number)
    with psycopg.connect(installed.url("submitter")) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT payload FROM fairlead_tasks")


@NUMBERS
def test_a_submitter_appends_to_ordered_queues(
    submitter: Submitting, installed: Installation, number: int
) -> None:
    installed.grant("submitter: to ordered queues")
    move = submitter.move
    submitter.app.submit_many([move.options(ordering_key="a").draft(n=n) for n in range(number)])
    with psycopg.connect(installed.url("submitter")) as connection:
        move.options(connection=connection, ordering_key="a").submit(n=number)
    assert count(installed, "task_log") == number + 1


def test_a_submitter_reads_the_states_of_its_handles(
    submitter: Submitting, installed: Installation
) -> None:
    handle = submitter.note.submit(n=1)
    with pytest.raises(ConfigurationError, match="permission denied .* has the grants"):
        handle.state()
    installed.grant("submitter: states and results of its handles")
    assert handle.state() == State.SUBMITTED


# row-level security -------------------------------------------------------------------------------


def restrict(installed: Installation, policy: str, table: str = "tasks") -> None:
    installed.run(f"ALTER TABLE fairlead.fairlead_{table} ENABLE ROW LEVEL SECURITY")
    installed.run(f"CREATE POLICY one ON fairlead.fairlead_{table} {policy}")


@pytest.mark.parametrize("number", [1, 60, 1500])
@pytest.mark.parametrize("joins", [False, True])
def test_row_level_security_lets_a_submitter_submit_what_its_policy_allows(
    submitter: Submitting, installed: Installation, number: int, joins: bool
) -> None:
    restrict(installed, "FOR INSERT TO submitter WITH CHECK (fairness_key = 'acme')")
    with psycopg.connect(installed.url("submitter")) as connection:
        note = submitter.note.options(connection=connection if joins else None)
        handles = note.options(fairness_key="acme").submit_many(rows(number))
        assert len({handle.id for handle in handles}) == number
    assert count(installed) == number
    with psycopg.connect(installed.url("submitter")) as connection:
        note = submitter.note.options(connection=connection if joins else None)
        error = psycopg.errors.InsufficientPrivilege if joins else ConfigurationError
        with pytest.raises(error, match="row-level security"):
            note.options(fairness_key="umbrella").submit_many(rows(number))
    assert count(installed) == number


def test_a_unique_key_that_a_policy_hides_is_refused(
    submitter: Submitting, installed: Installation
) -> None:
    installed.grant("submitter: with unique_key")
    note = submitter.note.options(unique_key="one")
    first = note.submit(n=1)
    rule = f"FOR ALL TO submitter USING (task_id <> '{first.id}') WITH CHECK (true)"
    restrict(installed, rule, "unique_keys")
    with pytest.raises(ConfigurationError, match="hidden from this role; let its policy"):
        note.submit(n=1)


# worker, reader and migrator ----------------------------------------------------------------------


def test_a_worker_moves_an_ordered_queue_and_a_reader_or_submitter_is_refused(
    submitter: Submitting, installed: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repartition, "LAYOUT_SECONDS", 0.0)
    monkeypatch.setattr(repartition, "_MARGIN_SECONDS", 0.0)
    for role in ("worker", "reader", "submitter: to ordered queues"):
        installed.grant(role)
    submitter.move.options(ordering_key="a").submit(n=0)

    async def move(role: str, partitions: int) -> repartition.Repartitioned:
        app = App(installed.url(role))
        app.queue("moves", kind="ordered")
        try:
            return await app.management.ordered.repartition("moves", partitions)
        finally:
            await app.connections.close_async()
            app.close()

    for role in ("reader", "submitter"):
        with pytest.raises(ConfigurationError, match="permission denied .* has the grants"):
            asyncio.run(move(role, 7))

    async def move_beside_a_transaction() -> int:
        with psycopg.connect(installed.url("submitter")) as connection:
            submitter.move.options(connection=connection, ordering_key="a").submit(n=1)
            moving = asyncio.ensure_future(move("worker", 7))
            done, _ = await asyncio.wait([moving], timeout=2)
            assert not done  # waits for the transaction that has appended
        return (await moving).entries

    assert asyncio.run(move_beside_a_transaction()) == 2


def test_a_worker_runs_tasks_of_every_kind(installed: Installation) -> None:
    installed.grant("worker")
    app = App(installed.url("worker"))
    app.queue("limited", concurrency=ClusterLimit(1))
    app.queue("moves", kind="ordered", partitions=2)
    ran: list[int] = []

    @app.task(retry=Fixed(0.0, max_attempts=3), keep_result=True)
    def flaky(n: int) -> int:
        ran.append(n)
        if ran == [1]:
            raise ValueError
        return n

    @app.task(transactional=True, queue="limited")
    def book(n: int, connection: Any) -> None:
        ran.append(n)
        flaky.submit(n=n + 1)

    @app.task
    def fail(n: int) -> None:
        raise ValueError

    @app.task(queue="moves")
    def move(n: int) -> None:
        ran.append(n)

    @app.periodic("0 0 1 1 *")
    @app.task
    def yearly() -> None: ...

    handle = flaky.options(ordering_key="a", unique_key="a").submit(n=1)
    failed = fail.submit(n=1)
    book.submit(n=10)
    move.options(ordering_key="a").submit(n=20)

    async def until_done() -> None:
        async with running(app):
            await until(lambda: set(ran) == {1, 10, 11, 20} and failed.state() == State.ERROR)

    asyncio.run(until_done())
    assert handle.result(timeout=SOON) == 1
    app.close()


def test_a_reader_sees_everything_and_changes_nothing(
    installed: Installation, submitter: Submitting
) -> None:
    installed.grant("reader")
    handle = submitter.note.submit(n=1)

    def look(app: App) -> None:
        management = app.management
        assert [task.id for task in management.find()] == [handle.id]
        assert management.show(handle.id).state == State.SUBMITTED
        assert management.payload(handle.id) is not None
        assert [status.submitted for status in management.queues()] == [1]
        assert (management.attempts(handle.id), management.nodes()) == ([], [])
        assert asyncio.run(examine(app.operate_context))
        with pytest.raises(ConfigurationError, match="permission denied .* has the grants"):
            management.cancel(handle.id)

    with_app(installed.url("reader"), look)


def test_the_migrator_migrates_again_and_others_cannot(installed: Installation) -> None:
    installed.grant("worker", "reader", "exporter", *GROUPS)
    assert with_app(installed.url("migrator"), App.migrate) == []
    for role in ROLES[1:]:
        with psycopg.connect(installed.url(role)) as connection:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("CREATE TABLE one (x integer)")
            connection.rollback()
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("UPDATE fairlead_schema SET version = 2")


def test_a_role_without_rights_gets_one_line_with_the_cause_and_the_cure(
    installed: Installation,
) -> None:
    installed.run("GRANT USAGE ON SCHEMA fairlead TO reader")
    installed.run("ALTER ROLE reader SET search_path = fairlead")
    with pytest.raises(ConfigurationError, match="^[^\n]+permission denied for table[^\n]+$"):
        with_app(installed.url("reader"), lambda app: app.management.find())
    with pytest.raises(ConfigurationError, match="^[^\n]+permission denied for schema[^\n]+$"):
        with_app(installed.url("reader"), App.migrate)
    installed.run("REVOKE USAGE ON SCHEMA fairlead FROM reader")
    for path in ("fairlead", '"$user", public, "fairlead"'):
        installed.run(f"ALTER ROLE reader SET search_path = {path}")
        with pytest.raises(ConfigurationError, match="GRANT USAGE ON SCHEMA fairlead TO reader"):
            with_app(installed.url("reader"), lambda app: app.management.find())
    installed.run("ALTER ROLE reader SET search_path = missing")
    with pytest.raises(ConfigurationError, match="no schema has been selected.*create the schema"):
        with_app(installed.url("reader"), App.migrate)


# exporter -----------------------------------------------------------------------------------------


def test_an_exporter_misses_no_task_that_commits_late(
    installed: Installation, submitter: Submitting
) -> None:
    installed.grant("exporter")
    note = submitter.note
    history = SqlHistory(task_store(installed.url("exporter")).database)

    def read(after: str) -> list[Any]:
        # Ids never go back, and tests on virtual time leave them ahead of the clock.
        now = int(second.id.replace("-", "")[:12], 16) * 1000 + 60_000_000
        return list(history.database.read_now(history.submitted(after, now, 100)))

    with psycopg.connect(installed.url("submitter")) as connection:
        first = note.options(connection=connection).submit(n=1)
        second = note.submit(n=2)
        assert read("") == []
        connection.commit()
    wait_until(lambda: len(read("")) == 2)  # other databases hold the horizon back
    assert [row[1] for row in read("")] == [first.id, second.id]
    history.database.close()
