"""Spans of submits and runs are linked through the task, with every executor, and in transactions of
the user."""

from __future__ import annotations

import asyncio
import importlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fairlead import (
    App,
    ConfigurationError,
    Fixed,
    NoRetry,
    Retry,
    Snooze,
    State,
    current_task,
)
from fairlead.testing import drain, running

pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry-sdk")
from opentelemetry import baggage, context, trace  # noqa: E402
from opentelemetry.trace import SpanKind, StatusCode  # noqa: E402

from fairlead.contrib.opentelemetry import Tracing  # noqa: E402
from tests.builders import idle
from tests.spans import Spans, attributes, ids, is_parent, linked, traceparent  # noqa: E402
from tests.waiting import until

SOON = 20.0
TRACE, SPAN = 0xABCDEF0123456789ABCDEF0123456789, 0xABCDEF0123456789
TRACEPARENT = f"00-{TRACE:032x}-{SPAN:016x}-01"

EXECUTORS = ["loop", "thread"]


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def app(sqlite_url: str, spans: Spans) -> Iterator[App]:
    """Yield an application with tracing."""
    application = App(sqlite_url, interceptors=[Tracing(spans.provider)])
    application.migrate()
    yield application
    application.close()


def carried(app: App, task_id: str) -> dict[str, str]:
    record = app.store.database.read_now(app.store.task(task_id))
    assert record is not None and record.context is not None
    return json.loads(record.context)


# submit and run -----------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", EXECUTORS)
async def test_a_run_is_linked_to_its_submit_and_current_in_its_handler(
    app: App, spans: Spans, executor: str
) -> None:
    def recorded() -> list[Any]:
        task, (trace_id, span_id) = current_task(), trace.get_current_span().get_span_context()[:2]
        assert task is not None
        return [trace_id, span_id, task.context, task.pickup_delay * 1000]

    if executor == "loop":

        @app.task(queue="payouts", keep_result=True)
        async def pay(partner: str) -> list[Any]:
            await asyncio.sleep(0)
            return recorded()

    else:

        @app.task(queue="payouts", keep_result=True)
        def pay(partner: str) -> list[Any]:
            return recorded()

    with spans.tracer.start_as_current_span("request") as request:
        handle = pay.options(fairness_key="acme", context={"request": "7"}).submit(partner="acme")
    travelling = carried(app, handle.id)
    async with running(app):
        trace_id, span_id, found, delay = await handle.result_async(SOON)

    submit, run = spans.only("submit payouts"), spans.only("run payouts")
    assert is_parent(request, submit) and is_parent(submit, run) and linked(run) == [ids(submit)]
    assert submit.kind is SpanKind.PRODUCER and run.kind is SpanKind.CONSUMER
    assert submit.status.status_code is run.status.status_code is StatusCode.UNSET
    assert attributes(submit) == {
        "messaging.system": "fairlead",
        "messaging.operation.name": "submit",
        "messaging.operation.type": "send",
        "messaging.destination.name": "payouts",
        "messaging.message.id": handle.id,
        "fairlead.task.name": "pay",
        "fairlead.fairness_key": "acme",
        "fairlead.is_new": True,
    }
    (attempt,) = app.management.attempts(handle.id)
    waited = (attempt.started_at - attempt.ready_at) / 1000
    assert waited >= 0
    assert attributes(run) == {
        "messaging.system": "fairlead",
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.destination.name": "payouts",
        "messaging.message.id": handle.id,
        "fairlead.task.name": "pay",
        "fairlead.attempt": 1,
        "fairlead.fairness_key": "acme",
        "queue.pickup_delay_ms": pytest.approx(waited),
    }
    assert (trace_id, span_id) == ids(run) and delay == pytest.approx(waited)
    assert found == {"request": "7", "traceparent": traceparent(run)}
    assert travelling == {"request": "7", "traceparent": traceparent(submit)}


async def test_spans_of_a_child_process_are_below_the_run_in_the_worker(
    sqlite_url: str, spans: Spans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_provider_app.py").write_text(
        "import fairlead\nfrom fairlead.contrib.opentelemetry import Tracing\nfrom opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "trace.set_tracer_provider(TracerProvider())\n"
        "app = fairlead.App(interceptors=[Tracing()])\n"
        "@app.task(executor='process', keep_result=True)\n"
        "def work() -> list:\n"
        "    with trace.get_tracer('mine').start_as_current_span('inside') as span:\n"
        "        return [span.context.trace_id, span.parent.span_id]\n"
        "@app.task(executor='process')\n"
        "def die() -> None:\n    import os\n    os._exit(3)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    app = App(sqlite_url, interceptors=[Tracing(spans.provider)])

    @app.task(executor="process", keep_result=True)
    def work() -> list[int]: ...

    @app.task(queue="dying", executor="process", retry=NoRetry())
    def die() -> None: ...

    handle = work.submit()
    async with running(app, application="own_provider_app:app") as node:
        assert tuple(await handle.result_async(SOON)) == ids(spans.only("run default"))
        dead = die.submit()
        await until(lambda: not node.in_flight and dead.state() is State.ERROR)
    died = spans.only("run dying")
    assert died.status.status_code is StatusCode.ERROR
    assert attributes(died)["error.type"] == "fairlead.engine.executors.process.ChildDied"
    app.close()


async def test_spans_and_submits_of_a_handler_are_below_its_run(app: App, spans: Spans) -> None:
    found: list[str] = []

    @app.task(queue="after")
    async def follow() -> None:
        task = current_task()
        assert task is not None
        found.append(task.context["request"])

    @app.task
    def work() -> None:
        with spans.tracer.start_as_current_span("inside"):
            pass
        task = current_task()
        assert task is not None
        # Pass the context on, as an application does with a request id.
        follow.options(context=task.context).submit()

    work.options(context={"request": "7"}).submit()
    await drain(app)
    run, submit = spans.only("run default"), spans.only("submit after")
    assert is_parent(run, spans.only("inside")) and is_parent(run, submit)
    assert is_parent(submit, spans.only("run after"))
    assert found == ["7"]


async def test_runs_of_a_traced_worker_are_below_their_submits_only(app: App, spans: Spans) -> None:
    work = idle(app, "work")

    @app.task
    def in_thread() -> None: ...

    work.submit()
    in_thread.submit()
    with spans.tracer.start_as_current_span("the worker"):
        await drain(app)
    for run in spans.named("run default"):
        assert run.parent is not None and linked(run) == [(run.parent.trace_id, run.parent.span_id)]
    assert len(spans.named("run default")) == 2


@pytest.mark.parametrize("size", [5, 2500])
async def test_a_bulk_submit_is_one_span_to_which_all_its_runs_are_linked(
    app: App, spans: Spans, size: int
) -> None:
    runs: list[dict[str, str]] = []

    @app.task
    async def work(n: int) -> None:
        task = current_task()
        assert task is not None
        runs.append(dict(task.context))

    if size == 5:
        await work.options(context={"bulk": "1"}).submit_many_async({"n": n} for n in range(size))
    else:
        work.options(context={"bulk": "1"}).submit_many({"n": n} for n in range(size))
    await drain(app)
    submit = spans.only("submit default")
    assert attributes(submit)["messaging.batch.message_count"] == size
    assert "messaging.message.id" not in attributes(submit)
    assert {link for run in spans.named("run default") for link in linked(run)} == {ids(submit)}
    assert len(runs) == size and {context["bulk"] for context in runs} == {"1"}


# ends of runs -------------------------------------------------------------------------------------


async def test_the_span_of_a_failed_try_carries_its_exception(app: App, spans: Spans) -> None:
    errors: list[BaseException] = [Retry(0), ValueError("no such partner")]

    @app.task(retry=Fixed(0, max_attempts=5), transactional=True)
    async def work(connection: Any) -> None:
        if errors:
            raise errors.pop()

    handle = work.submit()
    await drain(app)
    submit, runs = spans.only("submit default"), spans.named("run default")
    assert [attributes(run)["fairlead.attempt"] for run in runs] == [1, 2, 3]
    assert [linked(run) for run in runs] == [[ids(submit)]] * 3
    assert [run.status.status_code for run in runs] == [
        StatusCode.ERROR,
        StatusCode.ERROR,
        StatusCode.UNSET,
    ]
    assert (
        runs[0].status.description == "no such partner"
        and attributes(runs[0])["error.type"] == "ValueError"
    )
    (event,) = runs[0].events
    assert event.name == "exception" and "no such partner" in str(dict(event.attributes or {}))
    assert attributes(runs[1])["error.type"] == "fairlead.errors.Retry"
    waits = [(a.started_at - a.ready_at) / 1000 for a in app.management.attempts(handle.id)]
    assert [attributes(run)["queue.pickup_delay_ms"] for run in runs] == pytest.approx(waits)


async def test_a_snooze_fails_no_span(app: App, spans: Spans) -> None:
    slept: list[bool] = []

    @app.task
    async def work() -> None:
        if not slept:
            slept.append(True)
            raise Snooze(datetime.now(UTC) - timedelta(seconds=1))

    work.submit()
    await drain(app)
    first, second = spans.named("run default")
    assert first.status.status_code is second.status.status_code is StatusCode.UNSET
    assert [event.name for event in first.events] == ["snoozed"]


async def test_a_run_stopped_by_its_timeout_fails_its_span(app: App, spans: Spans) -> None:
    @app.task(timeout=0.05, retry=NoRetry())
    async def slow() -> None:
        await asyncio.sleep(100)

    slow.submit()
    await drain(app)
    run = spans.only("run default")
    assert run.status.status_code is StatusCode.ERROR
    assert attributes(run)["error.type"] == "fairlead.errors.TaskTimeout"
    assert attributes(run)["fairlead.stopped"] == "timeout"


async def test_a_run_that_a_stopping_worker_interrupts_has_not_failed(
    app: App, spans: Spans
) -> None:
    begun = asyncio.Event()

    @app.task
    async def slow() -> None:
        begun.set()
        await asyncio.sleep(100)

    slow.submit()
    async with running(app, drain=0.0):
        await begun.wait()
    run = spans.only("run default")
    assert (
        run.status.status_code is StatusCode.UNSET
        and attributes(run)["fairlead.stopped"] == "shutdown"
    )


# submits ------------------------------------------------------------------------------------------


def test_a_submit_that_is_refused_fails_its_span(app: App, spans: Spans) -> None:
    @app.task
    async def work(n: int) -> None: ...

    with pytest.raises(ValueError, match="missing"):
        work.submit()
    submit = spans.only("submit default")
    assert submit.status.status_code is StatusCode.ERROR
    assert attributes(submit)["error.type"] == "fairlead.errors.InvalidTask"


async def test_the_trace_context_of_a_submit_is_stored_in_the_users_transaction(
    sqlite_url: str, postgres_url: str, spans: Spans
) -> None:
    psycopg = pytest.importorskip("psycopg", reason="needs the extra postgres")
    asyncpg = pytest.importorskip("asyncpg", reason="needs the extra postgres")
    for url in (sqlite_url, postgres_url):
        app = App(url, interceptors=[Tracing(spans.provider)])
        app.migrate()

        @app.task
        async def work() -> None: ...

        assert app.store  # checks the tables before the transaction locks the file
        if url == sqlite_url:
            with app.transaction(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
                work.options(connection=connection).submit()
        else:
            with psycopg.connect(url) as connection:
                work.options(connection=connection).submit()
                connection.rollback()
                work.options(connection=connection).submit()
            connection = await asyncpg.connect(url)
            async with app.transaction(connection):
                await work.options(connection=connection).submit_async()
            await connection.close()
        await drain(app)
        app.close()
    submits, runs = spans.named("submit default"), spans.named("run default")
    assert len(submits) == 4 and len(runs) == 3  # one was rolled back
    assert {link for run in runs for link in linked(run)} == {ids(submits[n]) for n in (0, 2, 3)}


async def test_a_trace_context_that_the_user_chose_stays(app: App, spans: Spans) -> None:
    work = idle(app, "work")
    handle = work.options(context={"traceparent": TRACEPARENT, "mine": "1"}).submit()
    assert carried(app, handle.id) == {"traceparent": TRACEPARENT, "mine": "1"}
    await drain(app)
    assert (
        linked(spans.only("submit default")) == linked(spans.only("run default")) == [(TRACE, SPAN)]
    )


async def test_baggage_travels_into_the_handler_and_on(app: App, spans: Spans) -> None:
    found: list[Any] = []

    @app.task
    async def work(again: bool) -> None:
        found.append(baggage.get_baggage("tenant"))
        if again:
            await work.submit_async(again=False)

    token = context.attach(baggage.set_baggage("tenant", "acme"))
    work.submit(again=True)
    context.detach(token)
    await drain(app)
    assert found == ["acme", "acme"]


async def test_runs_with_traces_of_their_own_are_only_linked_to_their_submits(
    sqlite_url: str, spans: Spans
) -> None:
    app = App(sqlite_url, interceptors=[Tracing(spans.provider, own_traces=True)])
    app.migrate()

    @app.task
    async def work() -> None:
        with spans.tracer.start_as_current_span("inside"):
            pass

    work.submit()
    await drain(app)
    submit, run = spans.only("submit default"), spans.only("run default")
    assert run.parent is None and linked(run) == [ids(submit)] and ids(run)[0] != ids(submit)[0]
    assert is_parent(run, spans.only("inside"))
    app.close()


async def test_runs_of_tasks_submitted_without_tracing_are_traced(app: App, spans: Spans) -> None:
    plain = App(app.url)
    for each in (app, plain):

        @each.task
        async def work() -> None: ...

    work.submit()
    await drain(app)
    run = spans.only("run default")
    assert run.parent is None and not run.links
    plain.close()


# without tracing ------------------------------------------------------------------------------------------


async def test_without_a_tracer_provider_no_trace_context_is_stored_and_tasks_run(
    sqlite_url: str,
) -> None:
    app = App(sqlite_url, interceptors=[Tracing()])
    contexts: list[Any] = []

    @app.task
    async def work() -> None:
        task = current_task()
        assert task is not None
        contexts.append(task.context)

    work.submit()
    await drain(app)
    assert contexts == [{}]
    app.close()


def test_without_the_extra_the_error_names_it_and_nothing_else_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("fairlead.contrib.opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'fairlead\[opentelemetry\]'"):
        importlib.import_module("fairlead.contrib.opentelemetry")
    modules = "fairlead, fairlead.cli, fairlead.engine.node, fairlead.engine.executors.child, fairlead.testing"
    check = f"import sys, {modules}; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
