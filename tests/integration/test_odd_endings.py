"""Each handler that ends oddly leaves an attempt with a true error and affects no other task."""

from __future__ import annotations

import asyncio
import contextvars
import os
import random
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fairlead import App, Fixed, NoRetry, Retry, Snooze, State
from fairlead.clock import MICROS
from fairlead.engine.node import Node
from fairlead.testing import drain, running, settled
from tests.attempts import of_kind
from tests.integration.odd_endings import ASYNC_FAILING, ASYNC_RETURNING, RAISED, RETURNED, OwnBase
from tests.tiers import seeds
from tests.waiting import until

pytestmark = pytest.mark.virtual_time

SLOTS = 8
TWICE = Fixed(0, max_attempts=2)


def declare(app: App) -> tuple[Any, dict[str, Any]]:
    """Return the harmless tasks by executor with their runs, and the odd tasks by kind."""
    runs: list[int] = []

    @app.task(name="plain async")
    async def plain_async(n: int) -> None:
        runs.append(n)

    @app.task(name="plain async that waits")
    async def plain_waiting(n: int) -> None:
        await asyncio.sleep(0.003)
        runs.append(n)

    @app.task(name="plain thread")
    def plain_thread(n: int) -> None:
        runs.append(n)

    @app.task(name="raises async", retry=TWICE)
    async def raises_async(how: str) -> None:
        raise RAISED[how]()

    @app.task(name="raises thread", retry=TWICE)
    def raises_thread(how: str) -> None:
        raise RAISED[how]()

    @app.task(name="returns async", retry=TWICE, keep_result=True)
    async def returns_async(how: str) -> Any:
        return RETURNED[how]()

    @app.task(name="returns thread", retry=TWICE, keep_result=True)
    def returns_thread(how: str) -> Any:
        return RETURNED[how]()

    @app.task(name="fails its task", retry=TWICE)
    async def fails_its_task(how: str) -> None:
        await ASYNC_FAILING[how]()

    @app.task(name="leaves its task", retry=TWICE)
    async def leaves_its_task(how: str) -> None:
        await ASYNC_RETURNING[how]()

    odd = {
        "raises async": (raises_async, RAISED),
        "raises thread": (raises_thread, RAISED),
        "returns async": (returns_async, RETURNED),
        "returns thread": (returns_thread, RETURNED),
        "fails its task": (fails_its_task, ASYNC_FAILING),
        "leaves its task": (leaves_its_task, ASYNC_RETURNING),
    }
    return (runs, [plain_async, plain_waiting, plain_thread]), odd


def declare_in_process(app: App) -> tuple[Any, dict[str, Any]]:
    """Return the harmless and the odd tasks of the process executor, without a record of their runs."""

    @app.task(name="plain process", executor="process")
    def plain_process(n: int) -> None: ...

    @app.task(name="raises process", executor="process", retry=TWICE)
    def raises_process(how: str) -> None:
        raise RAISED[how]()

    @app.task(name="returns process", executor="process", retry=TWICE, keep_result=True)
    def returns_process(how: str) -> Any:
        return RETURNED[how]()

    odd = {
        "raises process": (raises_process, RAISED),
        "returns process": (returns_process, RETURNED),
    }
    return (None, [plain_process]), odd


ALL = [
    (kind, how)
    for kind, endings in {
        "raises async": RAISED,
        "raises thread": RAISED,
        "returns async": RETURNED,
        "returns thread": RETURNED,
        "fails its task": ASYNC_FAILING,
        "leaves its task": ASYNC_RETURNING,
    }.items()
    for how in endings
]


async def every_slot_is_free(node: Node) -> None:
    """Wait until all slots are free: a late trigger of a finished task takes a slot for a moment."""
    await until(lambda: not node.parts.context.ledger.acquired)


async def check(
    app: App,
    declared: Any,
    endings: list[tuple[str, str]],
    positions: list[int],
    **settings: Any,
) -> None:
    """Run odd tasks at these positions among harmless ones, and check what every task became."""
    (runs, plain), odd = declared
    plain_handles, odd_handles = [], []
    drafts = [plain[n % len(plain)].draft(n=n) for n in range(3 * SLOTS)]
    for (kind, how), position in sorted(zip(endings, positions, strict=True), key=lambda e: -e[1]):
        drafts.insert(position, odd[kind][0].draft(how=how))
    handles = app.submit_many(drafts)
    for draft, handle in zip(drafts, handles, strict=True):
        if "n" in draft.kwargs:
            plain_handles.append(handle)
        else:
            odd_handles.append((draft.handler.name, draft.kwargs["how"], handle))
    async with running(app, concurrency=SLOTS, threads=2, **settings) as node:
        await settled(app, node)
        await every_slot_is_free(node)
        last = plain[0].submit(n=-1)
        await settled(app, node)
        assert last.state() == State.DONE, "the node is alive"
    assert runs is None or sorted(runs) == [-1, *range(3 * SLOTS)]
    for handle in plain_handles:
        assert [a.outcome for a in app.management.attempts(handle.id)] == ["done"]
    for kind, how, handle in odd_handles:
        attempts = app.management.attempts(handle.id)
        if kind == "leaves its task":
            assert [a.outcome for a in attempts] == ["done"], how
        else:
            outcomes = [a.outcome for a in attempts]
            assert outcomes in (["failed"], ["retried", "failed"]), how
            assert all(a.error_type and a.error_text is not None for a in attempts), how
            assert handle.state() == State.ERROR, how


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in ALL}))
async def test_an_odd_ending_is_an_attempt_with_an_error_and_hurts_no_other_task(
    app: App, kind: str
) -> None:
    endings = [each for each in ALL if each[0] == kind]
    await check(app, declare(app), endings, [n % (3 * SLOTS) for n in range(len(endings))])


@pytest.mark.parametrize("seed", seeds(4))
async def test_any_odd_endings_at_any_position_hurt_no_other_task(
    sqlite_url: str, seed: int
) -> None:
    draw = random.Random(seed)
    app = App(sqlite_url)
    app.queue("default", partitions=draw.choice([1, 2]), order=draw.choice(["fair", "fifo"]))
    app.migrate()
    kinds = draw.choices(sorted({kind for kind, _ in ALL}), k=draw.randint(1, 3 * SLOTS))
    endings = [draw.choice([each for each in ALL if each[0] == kind]) for kind in kinds]
    positions = [draw.randrange(3 * SLOTS) for _ in endings]
    await check(app, declare(app), endings, positions)
    app.close()


@pytest.fixture
def odd_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of an application that child processes import."""
    (tmp_path / "odd_app.py").write_text(
        "import fairlead\n"
        "from tests.integration.test_odd_endings import declare_in_process\n"
        "app = fairlead.App()\ndeclare_in_process(app)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "odd_app:app"


@pytest.mark.system_time
async def test_odd_endings_in_child_processes_hurt_no_other_task(app: App, odd_app: str) -> None:
    declared = declare_in_process(app)
    endings = [(kind, how) for kind, (_, hows) in declared[1].items() for how in hows]
    positions = [n % (3 * SLOTS) for n in range(len(endings))]
    await check(app, declared, endings, positions, application=odd_app, processes=2)


@pytest.mark.parametrize("kind", ["async", "thread", "process"])
@pytest.mark.system_time
async def test_an_attempt_names_the_type_of_an_error_and_states_if_it_has_no_text(
    app: App, kind: str, odd_app: str
) -> None:
    _, odd = declare_in_process(app) if kind == "process" else declare(app)
    task = odd[f"raises {kind}"][0]
    expected = {
        "no text": ("tests.integration.odd_endings.Unprintable", "text not available"),
        "own base exception": ("tests.integration.odd_endings.OwnBase", "own"),
        "cancelled error": ("asyncio.exceptions.CancelledError", "by itself"),
        "system exit": ("SystemExit", "3"),
        "retry after text": ("fairlead.errors.InvalidDelay", "Retry(after='120'): use a number"),
        "retry after inf": ("fairlead.errors.InvalidDelay", "from 0 to 3155760000"),
        "retry changed later": ("fairlead.errors.InvalidDelay", "Retry(after='120')"),
        "snooze until naive": ("fairlead.errors.InvalidDelay", "the datetime is naive"),
        "nameless": ("tests.integration.odd_endings.Nameless", ""),
    }
    handles = {how: task.submit(how=how) for how in expected}
    await drain(app, application=odd_app)
    for how, (name, text) in expected.items():
        record = handles[how].record()
        assert record.error_type == name, how
        assert text in record.error_text, how


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda: Snooze(datetime.now(UTC) - timedelta(days=1)),
        lambda: Snooze(datetime(1, 1, 1, tzinfo=UTC)),
        lambda: Retry(after=0, reset_tries=True),
        lambda: Retry(reset_tries=True),
    ],
    ids=["snooze until yesterday", "snooze until the year 1", "retry now", "retry by policy"],
)
async def test_a_task_that_always_asks_for_an_immediate_run_without_a_try_runs_once_a_second(
    app: App, kind: str, ask: Callable[[], BaseException]
) -> None:
    def work() -> None:
        raise ask()

    handle = app.task(retry=TWICE)(of_kind(kind, work)).submit()
    async with running(app):
        await until(lambda: len(app.management.attempts(handle.id)) >= 5)
    starts = [attempt.started_at for attempt in app.management.attempts(handle.id)]
    pauses = [(after - before) / MICROS for before, after in pairwise(starts)]
    assert all(1.0 <= pause < 2.5 for pause in pauses), pauses


@pytest.mark.parametrize(
    "delay", ["5", float("nan"), float("inf"), -1, True, object, SystemExit(1)], ids=repr
)
async def test_a_retry_policy_that_returns_no_time_fails_its_own_task_only(
    app: App, delay: Any
) -> None:
    class Odd:
        def delay(self, tries: int, error: BaseException) -> Any:
            if isinstance(delay, BaseException):
                raise delay
            return delay

    @app.task(retry=Odd())
    async def odd() -> None:
        raise ValueError("its own error")

    @app.task
    async def plain() -> None: ...

    odd_handle, handle = odd.submit(), plain.submit()
    await drain(app)
    assert handle.state() == State.DONE
    assert odd_handle.state() == State.ERROR
    if not isinstance(delay, BaseException):
        assert "the retry policy returned" in (odd_handle.record().error_text or "")


async def test_a_retry_policy_may_ask_for_more_than_a_store_can_keep(app: App) -> None:
    class Forever:
        def delay(self, tries: int, error: BaseException) -> float:
            return 1e300

    @app.task(retry=Forever())
    async def work() -> None:
        raise ValueError("no")

    handle = work.submit()
    async with running(app):
        await until(lambda: handle.state() == State.WAITING)


async def test_a_coroutine_that_nobody_awaits_and_a_generator_are_errors(app: App) -> None:
    class Wrapped:
        """Callables that hide their `yield`, as decorators do."""

        async def coroutine(self) -> None: ...

        def generator(self) -> Any:
            yield

        async def generator_too(self) -> Any:
            yield

    @app.task
    def forgets(how: str) -> Any:
        return getattr(Wrapped(), how)()

    @app.task
    async def forgets_too(how: str) -> Any:
        return getattr(Wrapped(), how)()

    handles = {
        (task, how): task.submit(how=how)
        for task in (forgets, forgets_too)
        for how in ("coroutine", "generator", "generator_too")
    }
    await drain(app)
    for (_, how), handle in handles.items():
        assert handle.state() == State.ERROR
        text = f"returned a {how.removesuffix('_too')}"
        assert text in (handle.record().error_text or "")


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_transactional_handler_with_a_bad_result_keeps_no_writes(
    app: App, kind: str
) -> None:
    async def bad(written: Awaitable[object]) -> object:
        await written
        return object()

    def effect(connection: Any) -> Any:
        written = connection.execute("INSERT INTO effects VALUES (1)")
        return bad(written) if asyncio.iscoroutine(written) else object()

    with app.store.database.transaction() as connection:
        connection.execute("CREATE TABLE effects (n integer)")
    handle = app.task(transactional=True, keep_result=True)(of_kind(kind, effect)).submit()
    await drain(app)
    assert handle.state() == State.ERROR
    assert "cannot be kept as JSON" in (handle.record().error_text or "")
    with app.store.database.transaction() as connection:
        assert connection.execute("SELECT count(*) FROM effects").fetchall()[0][0] == 0


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("how", ["closes", "commits", "rolls back", *list(RAISED)[-4:]])
async def test_a_transactional_handler_hurts_no_other_task(app: App, kind: str, how: str) -> None:
    def misuse(connection: Any) -> Any:
        if how in RAISED:
            raise RAISED[how]()
        if how == "closes":
            return connection.close()
        return connection.execute("COMMIT" if how == "commits" else "ROLLBACK")

    odd: Any = app.task(transactional=True, retry=NoRetry())(of_kind(kind, misuse))
    plain: Any = app.task(transactional=True, name="plain")(of_kind(kind, lambda connection: None))
    handles = [plain.submit(), odd.submit(), plain.submit(), odd.submit(), plain.submit()]
    async with running(app) as node:
        await settled(app, node)
        handles.append(plain.submit())
        await settled(app, node)
        await every_slot_is_free(node)
    for n, handle in enumerate(handles):
        outcomes = [attempt.outcome for attempt in app.management.attempts(handle.id)]
        if n in (1, 3):
            assert outcomes in (["failed"], ["done"]), how
            assert how not in RAISED or outcomes == ["failed"]
        else:
            assert outcomes == ["done"], how


@pytest.mark.parametrize("how", ASYNC_FAILING)
async def test_a_shutdown_hands_back_a_run_whose_handler_changes_its_own_asyncio_task(
    app: App, how: str
) -> None:
    started = asyncio.Event()

    @app.task
    async def odd() -> None:
        with suppress(asyncio.CancelledError, Exception, OwnBase):
            async with asyncio.timeout(0.01):
                await ASYNC_FAILING[how]()
        with suppress(asyncio.CancelledError):  # a cancellation that is not delivered yet
            await asyncio.sleep(0)
        started.set()
        await asyncio.sleep(1000)

    handle = odd.submit()
    async with running(app, drain=0.1):
        async with asyncio.timeout(20):
            await started.wait()
    assert handle.state() == State.SUBMITTED
    (attempt,) = app.management.attempts(handle.id)
    assert (attempt.outcome, attempt.error_text) == ("cancelled", "the worker shut down")
    assert handle.record().tries == 0


async def test_a_node_that_is_cancelled_ends_its_handlers_and_blames_no_task(app: App) -> None:
    started = asyncio.Event()

    @app.task(retry=NoRetry())
    async def endless() -> None:
        started.set()
        await asyncio.sleep(1000)

    handle = endless.submit()
    node = app.node()
    serving = asyncio.create_task(node.run())
    async with asyncio.timeout(20):
        await started.wait()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:  # as asyncio.run does at its end
        task.cancel()
    async with asyncio.timeout(20):
        await asyncio.gather(*others, return_exceptions=True)
    assert serving.done()
    assert handle.state() == State.PROCESSING
    assert app.management.attempts(handle.id) == []


ODD_IN_ORDERED = [*ALL, ("snoozes", "until yesterday")]


@pytest.mark.parametrize("seed", seeds(4))
async def test_odd_endings_in_an_ordered_queue_hurt_no_other_task_of_their_key(
    sqlite_url: str, seed: int
) -> None:
    app = App(sqlite_url)
    app.queue("reminders", kind="ordered", partitions=2)
    app.migrate()
    runs: list[int] = []
    snoozed: list[str] = []

    @app.task(queue="reminders")
    async def plain(n: int) -> None:
        runs.append(n)

    @app.task(queue="reminders", retry=NoRetry())
    async def odd_async(kind: str, how: str) -> Any:
        if kind == "snoozes" and len(snoozed) < 3:
            snoozed.append(how)
            raise Snooze(datetime.now(UTC) - timedelta(days=1))
        if kind in ("fails its task", "leaves its task"):
            await (ASYNC_FAILING | ASYNC_RETURNING)[how]()
        if kind.startswith("raises"):
            raise RAISED[how]()

    @app.task(queue="reminders", retry=NoRetry())
    def odd_thread(how: str) -> Any:
        raise RAISED[how]()

    draw = random.Random(seed)
    chosen = draw.sample(ODD_IN_ORDERED, 20)
    handles = []
    for n, (kind, how) in enumerate(chosen):
        key = draw.choice("abc")
        if kind == "raises thread":
            handles.append(odd_thread.options(ordering_key=key).submit(how=how))
        else:
            handles.append(odd_async.options(ordering_key=key).submit(kind=kind, how=how))
        plain.options(ordering_key=key).submit(n=n)
    async with running(app, concurrency=4, threads=2) as node:
        await until(lambda: len(runs) >= len(chosen))
        await settled(app, node)
        await every_slot_is_free(node)
        assert node.parts.ordered.reloads() == {}
    assert sorted(runs) == list(range(len(chosen)))
    for (kind, how), handle in zip(chosen, handles, strict=True):
        outcomes = [attempt.outcome for attempt in app.management.attempts(handle.id)]
        if kind.startswith("raises") or kind == "fails its task":
            assert outcomes == ["failed"], (kind, how)
        elif kind == "snoozes":
            assert outcomes == ["snoozed"] * 3 + ["done"]
        else:
            assert outcomes == ["done"], (kind, how)
    app.close()


async def test_an_attempt_ends_though_its_handler_ignores_the_timeout(app: App) -> None:
    release = asyncio.Event()
    ran: list[int] = []

    @app.task(timeout=0.1, retry=NoRetry())
    async def stubborn() -> None:
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()

    @app.task
    async def plain(n: int) -> None:
        ran.append(n)

    handle = stubborn.submit()
    async with running(app, concurrency=2) as node:
        await until(lambda: handle.state() == State.ERROR)
        assert [a.outcome for a in app.management.attempts(handle.id)] == ["timed_out"]
        assert node.parts.context.ledger.room == 1, "the handler still runs"
        plain.submit(n=1)
        await settled(app, node)
        release.set()
        await until(lambda: not node.parts.context.ledger.acquired)
    assert ran == [1]
    assert [a.outcome for a in app.management.attempts(handle.id)] == ["timed_out"]


@pytest.mark.parametrize("refused", [1, 2, 3])
async def test_threads_that_cannot_start_end_no_node(
    app: App, refused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(retry=Fixed(1.0, max_attempts=3))
    def work(n: int) -> None: ...

    start, starts = threading.Thread.start, iter(range(100))

    def start_some(thread: threading.Thread) -> None:
        if thread.name.startswith("fairlead-handler") and next(starts) < refused:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    handles = work.submit_many([{"n": n} for n in range(4)])
    await drain(app, threads=4)
    attempts = [attempt for each in handles for attempt in app.management.attempts(each.id)]
    failed = [attempt for attempt in attempts if attempt.outcome != "done"]
    assert {handle.state() for handle in handles} == {State.DONE}
    assert len(failed) == refused
    assert all("can't start new thread" in str(attempt.error_text) for attempt in failed)


TENANT = contextvars.ContextVar("tenant", default="nobody")


@pytest.mark.parametrize("kind", ["async", "async that waits", "thread"])
async def test_no_task_sees_the_context_variables_of_another(app: App, kind: str) -> None:
    seen: list[str] = []

    async def waiting(tenant: str) -> None:
        await asyncio.sleep(0.01)
        assert TENANT.get() == tenant

    def work(tenant: str) -> Any:
        seen.append(TENANT.get())
        TENANT.set(tenant)
        return waiting(tenant) if kind == "async that waits" else None

    TENANT.set("the node")
    app.task(of_kind(kind, work)).submit_many([{"tenant": f"tenant {n}"} for n in range(20)])
    await drain(app, threads=2, concurrency=4)
    assert set(seen) == {"the node"}
    assert len(seen) == 20


async def test_a_handler_that_changes_the_working_directory_moves_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    app = App("sqlite:///tasks.db")
    app.migrate()

    @app.task
    def moves() -> None:
        os.chdir(tmp_path / "other")

    @app.task
    async def plain() -> None: ...

    async with running(app) as node:
        moves.submit()
        await settled(app, node)
        handle = plain.submit()
        await settled(app, node)
        assert handle.state() == State.DONE
    app.close()
    assert list((tmp_path / "other").iterdir()) == []
