"""Ordered queues on Kafka, Cassandra and ZooKeeper, by an application that has no SQL database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("cassandra", reason="needs the extra cassandra")
pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
pytest.importorskip("kazoo", reason="needs the extra zookeeper")

from fairlead import App, NoRetry, State  # noqa: E402
from fairlead.cli.main import app as commands  # noqa: E402
from fairlead.errors import (  # noqa: E402
    ConfigurationError,
    FairleadError,
    InvalidTask,
    NotAllowed,
    NotSupported,
    SchemaMismatch,
    UnknownTask,
)
from fairlead.model import FINAL_STATES  # noqa: E402
from fairlead.operate.doctor import examine, explanation  # noqa: E402
from fairlead.ordered.layout import OtherLayout  # noqa: E402
from fairlead.testing import running  # noqa: E402
from fairlead.version import VERSION
from tests.builders import idle
from tests.integration.ordered_kit import SOON, Kit  # noqa: E402
from tests.integration.ordered_kit import open_app as open_kit  # noqa: E402
from tests.waiting import until

Open = Callable[..., Kit]


@pytest.fixture
def urls(kafka_url: str, migrated_cassandra_url: str, zookeeper_url: str) -> dict[str, str]:
    return {"log": kafka_url, "schedule": migrated_cassandra_url, "coordinator": zookeeper_url}


@pytest.fixture
def open_app(
    urls: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Open]:
    """Yield a function that opens an application on these servers."""
    monkeypatch.chdir(tmp_path)
    for name, url in urls.items():
        monkeypatch.setenv(f"FAIRLEAD_{name.upper()}", url)
    opened: list[App] = []

    def open_one(**queue: Any) -> Kit:
        kit = open_kit(None, **queue)
        opened.append(kit.app)
        return kit

    yield open_one
    for app in opened:
        app.close()


async def test_tasks_run_in_order_and_once_without_a_sql_database(
    open_app: Open, tmp_path: Path
) -> None:
    kit = open_app()
    async with running(kit.app):
        for number in range(40):
            kit.submit(f"{number}", f"k{number % 4}")
        await kit.runs.until_count(40)
        management = kit.app.management
        await until(lambda: _is_idle(kit))
        views = await management.ordered.status("reminders")
        assert sum(view.unfinished + view.lag for view in views) == 0
        assert [node.queues for node in management.nodes()] == [["reminders"]]
        assert management.nodes()[0].facts.version == VERSION
    for key in range(4):
        names = [int(name) for name in kit.runs.names if int(name) % 4 == key]
        assert names == list(range(key, 40, 4))
    assert not list(tmp_path.iterdir())


async def _is_idle(kit: Kit) -> bool:
    schedule = kit.app.connections.schedule
    assert schedule is not None
    return not await schedule.has_due("reminders", kit.clock.now())


async def test_a_paused_queue_waits_and_an_ended_task_never_runs(open_app: Open) -> None:
    kit = open_app()
    async with running(kit.app) as node:
        kit.submit("before")
        await kit.runs.until("before")
        management = kit.app.management
        management.pause("reminders")
        assert [status.paused for status in management.queues()] == [True]
        assert len(await management.ordered.status("reminders")) == 8
        await until(lambda: _returned(node.parts.controls.is_paused("reminders")))
        kit.submit("while paused")
        await until(lambda: _is_read(kit))
        assert kit.runs.names == ["before"]
        management.unpause("reminders")
        await kit.runs.until("while paused")
        ahead = kit.submit("ahead", "b", at=kit.at(3600))
        await until(lambda: _is_waiting(kit, 1))
        management.ordered.drop("reminders", ahead.key)
        await until(lambda: _is_waiting(kit, 0))
    assert "ahead" not in kit.runs.names


async def _returned(value: bool) -> bool:
    return value


async def _is_read(kit: Kit) -> bool:
    return len(await kit.app.management.ordered.tasks("reminders", ordering_key="a")) == 1


async def _is_waiting(kit: Kit, count: int) -> bool:
    return len(await kit.app.management.ordered.tasks("reminders", ordering_key="b")) == count


def test_the_first_use_fixes_the_number_of_partitions(open_app: Open) -> None:
    open_app(partitions=8).submit("first")
    with pytest.raises(OtherLayout, match="has 8 partitions and is declared with 4"):
        open_app(partitions=4).submit("second")


def test_what_needs_a_sql_database_says_so_in_one_line_with_the_cure(open_app: Open) -> None:
    kit = open_app()
    management, cure = kit.app.management, "FAIRLEAD_URL"
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: kit.app.sql_store, cure),
        (lambda: management.find(), "fairlead ordered tasks"),
        (lambda: management.set_weight("reminders", "acme", 2.0), cure),
        (lambda: management.periodic.list(), cure),
    ]
    for call, said in refused:
        with pytest.raises(NotSupported) as caught:
            call()
        assert "without a SQL database" in str(caught.value)
        assert said in str(caught.value), str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(InvalidTask, match="cannot be part of your transaction"):
        kit.remind.options(ordering_key="a", connection=object()).submit(name="joined")


async def test_a_waiting_task_is_found_by_its_id_and_says_that_it_can_only_be_dropped(
    open_app: Open,
) -> None:
    kit = open_app()
    handle = kit.submit("later", at=kit.at(86_400), unique_key="u")
    management = kit.app.management
    async with running(kit.app):
        await until(lambda: _is_read(kit))
    for found in (handle.record(), kit.app.handle(handle.id).record(), management.show(handle.id)):
        assert (found.id, found.state, found.unique_key) == (handle.id, State.WAITING, "u")
    assert management.payload(handle.id) == b'{"name":"later"}'
    assert management.attempts(handle.id) == []
    found = await explanation(kit.app.operate_context, handle.id)
    assert [each.severity for each in found.reasons] == ["ok"]
    with pytest.raises(NotAllowed, match="fairlead ordered drop"):
        management.cancel(handle.id)
    shown = await asyncio.to_thread(
        CliRunner().invoke, commands, ["tasks", "show", handle.id, "--json"]
    )
    assert json.loads(shown.stdout)["task"]["state"] == "WAITING", shown.stderr
    await kit.app.connections.close_async()


async def test_a_task_that_has_ended_is_found_by_its_id_with_its_state_and_times(
    open_app: Open,
) -> None:
    kit = open_app()

    @kit.app.task(queue="reminders", retry=NoRetry())
    def fail() -> None:
        raise ValueError("no such address")

    management = kit.app.management
    done = kit.submit("done", unique_key="u")
    failed = fail.options(ordering_key="b").submit()
    dropped = kit.submit("dropped", "c", at=kit.at(86_400))
    with pytest.raises(UnknownTask, match="not read from the log yet"):
        done.state()
    async with running(kit.app):
        await kit.runs.until("done")
        await until(lambda: _has_ended(kit, failed.id))
        await until(lambda: _is_waiting(kit, 0))
        management.ordered.drop("reminders", dropped.key)
        await until(lambda: _has_ended(kit, dropped.id))
        await until(lambda: _has_ended(kit, done.id))
    expected = [(done, State.DONE), (failed, State.FAILED), (dropped, State.CANCELLED)]
    for handle, state in expected:
        record = management.show(handle.id)
        assert record == kit.app.handle(handle.id).record()
        assert (record.id, record.state, record.queue) == (handle.id, state, "reminders")
        assert management.payload(handle.id) is None
        (attempt,) = management.attempts(handle.id)
        assert attempt.finished_at >= record.submitted_at and attempt.next_state == state
        assert (await explanation(kit.app.operate_context, handle.id)).reasons
        with pytest.raises(NotAllowed):
            management.cancel(handle.id)
        shown = await asyncio.to_thread(
            CliRunner().invoke, commands, ["tasks", "show", handle.id, "--json"]
        )
        found = json.loads(shown.stdout)
        assert found["task"]["state"] == state and found["attempts"][0]["finished_at"], shown.stderr
    assert management.show(done.id).unique_key == "u"
    assert (management.show(failed.id).error_text or "").startswith("no such address")
    with pytest.raises(UnknownTask):
        management.show("0197f9a2-0000-7000-8000-000000000000")
    await kit.app.connections.close_async()


async def _has_ended(kit: Kit, task_id: str) -> bool:
    try:
        return kit.app.handle(task_id).state() in FINAL_STATES
    except UnknownTask:
        return False


def test_a_fair_queue_without_a_sql_database_is_refused_with_the_cure(open_app: Open) -> None:
    kit = open_app()
    pay = idle(kit.app, "pay")
    with pytest.raises(NotSupported, match=r"has ordered queues only: .*FAIRLEAD_URL"):
        pay.submit()
    with pytest.raises(ConfigurationError, match=r"'default' is not ordered.*FAIRLEAD_URL"):
        kit.app.node()


def test_a_periodic_task_without_a_sql_database_is_refused_with_the_cure(open_app: Open) -> None:
    kit = open_app()

    @kit.app.periodic("* * * * *")
    @kit.app.task(queue="reminders")
    def tick() -> None: ...

    with pytest.raises(NotSupported, match=r"has ordered queues only: .*FAIRLEAD_URL"):
        kit.app.node()


@pytest.mark.parametrize("missing", ["log", "schedule", "coordinator"])
def test_one_missing_server_asks_for_a_url(
    urls: dict[str, str], missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    app = App(**{name: url for name, url in urls.items() if name != missing})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="ordered queues alone need log, schedule and"):
        _ = app.store


@pytest.mark.parametrize("extra", ["channel", "backlog"])
def test_a_channel_or_backlog_without_a_sql_database_is_refused(
    urls: dict[str, str], extra: str
) -> None:
    app = App(**urls, **{extra: urls["log"]})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=f"need no {extra}; leave it out"):
        _ = app.store


def test_a_cassandra_url_of_tasks_needs_a_log_and_a_coordinator(urls: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="need coordinator='zookeeper://host:2181'"):
        _ = App(urls["schedule"], log=urls["log"]).store


def test_a_keyspace_without_tables_asks_for_migrate(
    urls: dict[str, str], cassandra_url: str
) -> None:
    app = App(**urls | {"schedule": cassandra_url})  # type: ignore[arg-type]
    with pytest.raises(SchemaMismatch, match="fairlead migrate"):
        _ = app.store
    app.close()


@pytest.mark.parametrize("alone_first", [True, False])
async def test_an_application_with_a_sql_database_and_one_without_share_no_keyspace_and_no_prefix(
    alone_first: bool,
    open_app: Open,
    kafka_server: Any,
    urls: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def open_beside(**others: str) -> Kit:
        for name, url in (urls | others).items():
            monkeypatch.setenv(f"FAIRLEAD_{name.upper()}", url)
        return open_kit(f"sqlite:///{tmp_path / 'shop.db'}")

    beside = {"coordinator": "database"}
    alone = open_app()
    # One keyspace, two logs.
    sql = open_beside(log=kafka_server.create_prefix(), **beside)
    first, second = (alone, sql) if alone_first else (sql, alone)
    async with running(first.app):
        first.submit("mine")
        second.submit("other")
        await first.runs.until("mine")
        with pytest.raises((FairleadError, ExceptionGroup)) as caught:
            await asyncio.wait_for(second.app.node().run(), SOON)
        assert "belongs to the application whose tasks are in" in _text(caught.value)
        assert "fairlead_keyspace" in _text(caught.value)
    assert first.runs.names == ["mine"] and not second.runs.names
    sql.app.close()
    # One log, two keyspaces.
    if alone_first:
        sql = open_beside(schedule="database", **beside)
        with pytest.raises((FairleadError, ExceptionGroup)) as caught:
            await asyncio.wait_for(sql.app.node().run(), SOON)
        assert "task.owner" in _text(caught.value)
        sql.app.close()


@pytest.mark.parametrize("shared", ["log", "coordinator"])
async def test_two_applications_without_a_sql_database_share_no_keyspace(
    shared: str,
    open_app: Open,
    kafka_server: Any,
    zookeeper_server: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = open_app()
    other = "coordinator" if shared == "log" else "log"
    url = zookeeper_server.create_root() if other == "coordinator" else kafka_server.create_prefix()
    monkeypatch.setenv(f"FAIRLEAD_{other.upper()}", url)
    second = open_app()
    async with running(first.app):
        first.submit("mine")
        await first.runs.until("mine")
        with pytest.raises((FairleadError, ExceptionGroup)) as caught:
            await asyncio.wait_for(second.app.node().run(), SOON)
        kind = "prefix" if other == "log" else "folder"
        assert f"an application with another {kind}" in _text(caught.value)
        if other == "log":
            with pytest.raises(ConfigurationError, match="another prefix"):
                second.submit("other")
    async with running(first.app):
        first.submit("again")
        await first.runs.until("again")
    assert first.runs.names == ["mine", "again"] and not second.runs.names


def _text(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return " ".join(map(_text, error.exceptions))
    return str(error)


async def test_the_doctor_finds_no_problem_while_a_worker_serves(open_app: Open) -> None:
    kit = open_app()
    async with running(kit.app):
        kit.submit("first")
        await kit.runs.until("first")
        await until(lambda: _is_idle(kit))
        found = await examine(kit.app.operate_context)
        assert not [each for each in found if each.severity == "problem"], found
        assert any("queue reminders: 0 tasks" in each.what for each in found)
    await kit.app.connections.close_async()
