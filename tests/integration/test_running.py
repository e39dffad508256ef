"""Run tasks: timeouts, retries, priorities, limits, interceptors, stuck tasks and shutdown."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Literal
from unittest.mock import AsyncMock

import pytest

import fairlead
from fairlead import (
    App,
    Delays,
    Exponential,
    Fixed,
    Limit,
    LimitTree,
    NoRetry,
    Processing,
    RateLimit,
    Retry,
    Snooze,
    State,
)
from fairlead.engine.pollers import Pollers
from fairlead.engine.settings import Intervals
from fairlead.errors import InvalidTask, ResultNotKept, ResultTimeout, TaskFailed
from fairlead.ports.observer import Silent
from fairlead.ports.task_store import IGNORE_STUCK, RESUME_STUCK, Claim
from fairlead.testing import drain, running, settled

pytestmark = pytest.mark.virtual_time

SOON = 20.0


def outcomes(app: App, handle: fairlead.TaskHandle) -> list[str]:
    return [attempt.outcome for attempt in app.management.attempts(handle.id)]


async def reaches(app: App, handle: fairlead.TaskHandle, state: State) -> None:
    async with asyncio.timeout(SOON):
        while handle.state() != state:
            await asyncio.sleep(0.01)


@pytest.mark.smoke
@pytest.mark.parametrize("when", ["at once", "scheduled"])
async def test_tasks_submitted_twice_with_one_unique_key_run_once(app: App, when: str) -> None:
    runs: list[int] = []

    @app.task
    async def note(n: int) -> None:
        runs.append(n)

    run_at = None if when == "at once" else datetime.now(UTC) + timedelta(seconds=1)
    answers: list[fairlead.TaskHandle] = []

    def add_all() -> None:
        for n in range(100):
            answers.append(note.options(unique_key=f"key-{n}", run_at=run_at).submit(n=n))

    threads = [threading.Thread(target=add_all) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert sum(answer.is_new for answer in answers) == 100
    async with running(app):
        async with asyncio.timeout(SOON):
            while len(runs) < 100:
                await asyncio.sleep(0.02)
    assert sorted(runs) == list(range(100))


@pytest.mark.system_time
@pytest.mark.parametrize("kind", ["async", "thread", "process"])
async def test_a_task_that_exceeds_its_timeout_goes_to_error_and_does_not_run_again(
    app: App, kind: str, tmp_path, monkeypatch
) -> None:
    done = threading.Event()
    settings = {}
    if kind == "async":

        @app.task(timeout=0.1, retry=NoRetry())
        async def slow() -> None:
            await asyncio.sleep(100)

    elif kind == "thread":

        @app.task(timeout=0.1, retry=NoRetry())
        def slow() -> None:
            done.wait(SOON)

    else:
        (tmp_path / "cpu_app.py").write_text(
            "import time\nimport fairlead\napp = fairlead.App()\n"
            "@app.task(executor='process')\ndef slow() -> None:\n    time.sleep(100)\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        settings["application"] = "cpu_app:app"

        @app.task(executor="process", timeout=1.5, retry=NoRetry())
        def slow() -> None: ...

    handle = slow.submit()
    async with running(app, **settings):
        await reaches(app, handle, State.ERROR)
        assert outcomes(app, handle) == ["timed_out"]
        assert "timeout" in (handle.record().error_text or "")
        done.set()


async def test_a_payload_of_12_mb_and_its_result_arrive_whole(store_url: str) -> None:
    app = App(store_url, payload_limit=16 << 20)
    app.migrate()

    @app.task(keep_result=True)
    async def length(text: str) -> int:
        return len(text)

    text = "".join(chr(97 + n * 7 % 26) for n in range(1 << 16)) * 180
    handle = length.submit(text=text)
    async with running(app):
        assert await handle.result_async(SOON) == len(text) == 11_796_480
    app.close()


async def test_tasks_run_in_the_order_of_their_priorities(app: App) -> None:
    app.queue("default", partitions=1)
    order: list[int] = []

    @app.task(concurrency=Limit(1))
    async def note(n: int) -> None:
        order.append(n)

    for n in (7, 1, 4, 2):
        note.options(priority=n).submit(n=n)
    await drain(app, concurrency=1)
    assert order == [1, 2, 4, 7]


@pytest.mark.ordered
async def test_tasks_of_one_priority_run_in_order_of_arrival_not_of_their_names(app: App) -> None:
    app.queue("default", partitions=1)
    order: list[str] = []

    @app.task(name="Z")
    async def last_name() -> None:
        order.append("Z")

    @app.task(name="A")
    async def first_name() -> None:
        order.append("A")

    last_name.submit()
    first_name.submit()
    await drain(app, concurrency=1)
    assert order == ["Z", "A"]


async def test_a_task_waits_for_a_worker_that_knows_its_name(app: App) -> None:
    other = App(app.url)
    other.queue("default")

    @other.task(queue="default", keep_result=True)
    async def strange() -> int:
        return 2

    @app.task(keep_result=True)
    async def works() -> int:
        return 1

    stranger = strange.submit()
    async with running(app):
        assert await works.submit().result_async(SOON) == 1
        record = stranger.record()
        assert (record.state, record.tries) == (State.SUBMITTED, 0)
        async with running(other):
            await reaches(app, stranger, State.DONE)
    other.close()


async def test_a_handler_knows_its_task_and_its_log_lines_carry_the_context(
    app: App, caplog
) -> None:
    seen: list[fairlead.CurrentTask] = []
    caplog.handler.addFilter(fairlead.ContextFilter())

    @app.task(timeout=60)
    async def look() -> None:
        task = fairlead.current_task()
        assert task is not None
        seen.append(task)
        logging.getLogger("shop").warning("looking")

    handle = look.options(fairness_key="acme", context={"trace": "abc"}).submit()
    await drain(app)
    (task,) = seen
    assert (task.id, task.name, task.attempt, task.tries, task.fairness_key) == (
        handle.id,
        "look",
        1,
        1,
        "acme",
    )
    assert task.deadline is not None
    assert task.deadline > datetime.now(UTC)
    assert task.context == {"trace": "abc"}
    (record,) = [record for record in caplog.records if record.name == "shop"]
    assert (record.task_id, record.context) == (handle.id, {"trace": "abc"})  # type: ignore[attr-defined]


async def test_a_task_that_waits_for_a_rate_limit_spends_no_attempt_and_delays_no_other_name(
    app: App,
) -> None:
    ran: list[str] = []
    freed = asyncio.Event()

    @app.task(concurrency=RateLimit(1, per=3600))
    async def limited(n: int) -> None:
        ran.append(f"limited {n}")

    @app.task
    async def free() -> None:
        freed.set()

    handles = [limited.submit(n=n) for n in range(5)]
    free.submit()
    async with running(app):
        async with asyncio.timeout(SOON):
            await freed.wait()
            while not ran:
                await asyncio.sleep(0.01)
    assert len(ran) == 1
    assert sorted(handle.state() for handle in handles) == [State.DONE] + [State.SUBMITTED] * 4
    assert sorted(len(outcomes(app, handle)) for handle in handles) == [0, 0, 0, 0, 1]


async def test_every_task_under_a_rate_limit_runs_eventually(app: App) -> None:
    @app.task(concurrency=RateLimit(5, per=0.5, burst=1))
    async def limited(n: int) -> None:
        pass

    handles = [limited.submit(n=n) for n in range(5)]
    await drain(app)
    assert all(outcomes(app, handle) == ["done"] for handle in handles)


async def test_handlers_that_raise_system_exit_stop_no_other_task(app: App) -> None:
    ran: list[int] = []

    @app.task(retry=NoRetry())
    async def maybe(n: int) -> None:
        if n % 2 == 0:
            raise SystemExit("poison")
        ran.append(n)

    maybe.submit_many([{"n": n} for n in range(20)])
    async with running(app) as node:
        await settled(app, node)
        maybe.submit_many([{"n": n} for n in range(20, 40)])
        await settled(app, node)
    assert sorted(ran) == list(range(1, 40, 2))


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_task_that_fails_all_its_five_tries_goes_to_error(app: App, kind: str) -> None:
    tries: list[int] = []

    def fail() -> None:
        task = fairlead.current_task()
        assert task is not None
        tries.append(task.tries)
        raise ConnectionError("the partner is down")

    policy = Exponential(max_attempts=5, first=0.01, jitter=0)
    if kind == "async":

        @app.task(retry=policy)
        async def pay() -> None:
            fail()

    else:

        @app.task(retry=policy)
        def pay() -> None:
            fail()

    handle = pay.submit()
    await drain(app)
    assert tries == [1, 2, 3, 4, 5]
    assert outcomes(app, handle) == ["retried"] * 4 + ["failed"]
    assert handle.state() == State.ERROR
    assert "the partner is down" in (handle.record().error_text or "")


async def test_a_handler_can_ask_for_a_retry_with_new_tries_and_a_delay(app: App) -> None:
    tries: list[int] = []

    @app.task(retry=Fixed(0, max_attempts=2))
    async def pay() -> None:
        task = fairlead.current_task()
        assert task is not None
        tries.append(task.tries)
        if len(tries) < 4:
            raise Retry(after=0, reset_tries=True)

    handle = pay.submit()
    await drain(app)
    assert len(tries) == 4
    assert outcomes(app, handle) == ["retried"] * 3 + ["done"]


async def test_a_snoozed_run_spends_no_try(app: App) -> None:
    seen: list[tuple[int, int]] = []

    @app.task(retry=NoRetry())
    async def later() -> None:
        task = fairlead.current_task()
        assert task is not None
        seen.append((task.attempt, task.tries))
        if len(seen) < 3:
            raise Snooze(datetime.now(UTC) + timedelta(milliseconds=20))

    handle = later.submit()
    await drain(app)
    assert seen == [(1, 1), (2, 1), (3, 1)]
    assert outcomes(app, handle) == ["snoozed", "snoozed", "done"]


async def test_only_the_named_errors_are_retried(app: App) -> None:
    @app.task(retry=Delays([0, 0], on=(ConnectionError,)))
    async def pay(kind: str) -> None:
        raise (ConnectionResetError if kind == "net" else ValueError)("no")

    net, bug = pay.submit(kind="net"), pay.submit(kind="bug")
    await drain(app)
    assert outcomes(app, net) == ["retried", "retried", "failed"]
    assert outcomes(app, bug) == ["failed"]


async def test_a_policy_that_raises_fails_its_own_tasks_only(app: App) -> None:
    class Broken:
        def column(self, trigger):
            return None

        def acquire(self, trigger, now):
            raise ZeroDivisionError("a bug in the policy")

        def release(self, trigger, now):
            return ()

        cancel = release

    class BrokenRetry:
        def delay(self, tries, error):
            raise ZeroDivisionError("a bug in the retry policy")

    ran: list[int] = []

    @app.task(concurrency=Broken(), retry=NoRetry())
    async def never() -> None:
        ran.append(-1)

    @app.task(retry=BrokenRetry())
    async def fails() -> None:
        raise ValueError("its own error")

    @app.task
    async def works(n: int) -> None:
        ran.append(n)

    broken, retried = never.submit(), fails.submit()
    works.submit_many([{"n": n} for n in range(20)])
    async with running(app, concurrency=4) as node:
        await settled(app, node)
        assert node.parts.context.ledger.room == 4  # every slot is free again
    assert sorted(ran) == list(range(20))
    assert broken.state() == retried.state() == State.ERROR
    assert "ZeroDivisionError" in (broken.record().error_type or "")


async def test_no_limit_of_concurrent_runs_is_exceeded(app: App) -> None:
    app.queue("payouts", concurrency=LimitTree(6, names={"pay": 4}, fairness_keys={"acme": 2}))
    now: dict[str, int] = {"all": 0, "pay": 0, "acme": 0}
    most = dict(now)

    def change(levels: list[str], by: int) -> None:
        for level in levels:
            now[level] += by
            most[level] = max(most[level], now[level])

    async def run(levels: list[str]) -> None:
        change(levels, 1)
        await asyncio.sleep(0.005)
        change(levels, -1)

    @app.task(queue="payouts")
    async def pay(acme: bool) -> None:
        await run(["all", "pay", "acme"] if acme else ["all", "pay"])

    @app.task(queue="payouts")
    async def other() -> None:
        await run(["all"])

    for n in range(60):
        pay.options(fairness_key="acme" if n % 2 else "other").submit(acme=bool(n % 2))
        if n < 40:  # at the end only `pay` is left and uses its whole limit
            other.submit()
    await drain(app)
    assert most == {"all": 6, "pay": 4, "acme": 2}


@pytest.mark.ordered
async def test_tasks_of_one_ordering_key_run_one_at_a_time_in_order(app: App) -> None:
    running_now: set[str] = set()
    order: dict[str, list[int]] = {"a": [], "b": []}

    @app.task
    async def step(key: str, n: int) -> None:
        assert key not in running_now
        running_now.add(key)
        await asyncio.sleep(0.002)
        running_now.discard(key)
        order[key].append(n)

    for n in range(30):
        for key in order:
            step.options(ordering_key=key).submit(key=key, n=n)
    await drain(app)
    assert order == {"a": list(range(30)), "b": list(range(30))}


async def test_interceptors_edit_every_submit_and_wrap_every_run(store_url: str) -> None:
    calls: list[str] = []

    class Counting(fairlead.Interceptor):
        def submitting(self, draft):
            calls.append("submit")
            return fairlead.Draft(
                draft.handler,
                draft.args,
                draft.kwargs,
                draft.options.changed({"context": {"by": "me"}}),
            )

        async def run(self, task, proceed):
            calls.append(f"before {task.context['by']}")
            try:
                return await proceed()
            finally:
                calls.append("after")

    app = App(store_url, interceptors=[Counting(), Counting()])
    app.migrate()

    @app.task
    async def pay() -> None:
        calls.append("pay")

    pay.submit()
    await drain(app)
    assert calls == ["submit"] * 2 + ["before me"] * 2 + ["pay"] + ["after"] * 2
    app.close()


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_interceptors_surround_every_submit_and_run_and_the_first_one_is_outermost(
    sqlite_url: str, kind: str
) -> None:
    calls: list[str] = []

    class Around(fairlead.Interceptor):
        def __init__(self, name: str) -> None:
            self.name = name

        @contextmanager
        def submission(self, submission):
            calls.append(f"{self.name} submits {len(submission.drafts)}")
            yield
            calls.append(f"{self.name} has submitted {len(submission.handles)}")

        @contextmanager
        def running(self, task):
            calls.append(
                f"{self.name} before {task.attempt} in {threading.current_thread().name.rpartition('-')[0]}"
            )
            try:
                yield
            except ValueError as error:
                calls.append(f"{self.name} sees {error}")
                raise

    app = App(sqlite_url, interceptors=[Around("a"), fairlead.Interceptor(), Around("b")])

    def fail_once() -> None:
        if (task := fairlead.current_task()) is not None and task.attempt == 1:
            raise ValueError("no")

    if kind == "async":

        @app.task(retry=Fixed(0, max_attempts=2))
        async def pay() -> None:
            fail_once()

    else:

        @app.task(retry=Fixed(0, max_attempts=2))
        def pay() -> None:
            fail_once()

    pay.submit_many([{}])
    submitted, calls[:] = list(calls), []
    assert submitted == ["a submits 1", "b submits 1", "b has submitted 1", "a has submitted 1"]
    await drain(app)
    where = (
        "fairlead-handler"
        if kind == "thread"
        else threading.current_thread().name.rpartition("-")[0]
    )
    assert calls == [
        f"a before 1 in {where}",
        f"b before 1 in {where}",
        "b sees no",
        "a sees no",
        f"a before 2 in {where}",
        f"b before 2 in {where}",
    ]
    app.close()


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_transactional_handler_commits_all_or_nothing(app: App, kind: str) -> None:
    @app.task
    async def follow(n: int) -> None: ...

    fail_once = {1: True}

    def judge(n: int) -> None:
        if fail_once.pop(n, False):
            raise ValueError("after the write")

    if kind == "async":

        @app.task(transactional=True, retry=Fixed(0, max_attempts=3))
        async def effect(n: int, connection) -> None:
            done = connection.execute(f"INSERT INTO effects VALUES ({n})")
            if asyncio.iscoroutine(done):
                await done
            await follow.submit_async(n=n)
            judge(n)

    else:

        @app.task(transactional=True, retry=Fixed(0, max_attempts=3))
        def effect(n: int, connection) -> None:
            connection.execute(f"INSERT INTO effects VALUES ({n})")
            follow.submit(n=n)
            judge(n)

    with app.store.database.transaction() as connection:
        connection.execute("CREATE TABLE effects (n integer)")
    handles = effect.submit_many([{"n": 1}, {"n": 2}])
    await drain(app)
    with app.store.database.transaction() as connection:
        assert sorted(row[0] for row in connection.execute("SELECT n FROM effects").fetchall()) == [
            1,
            2,
        ]
        runs = connection.execute(
            "SELECT count(*) FROM fairlead_attempts WHERE name = 'follow'"
        ).fetchall()
    assert runs[0][0] == 2
    assert outcomes(app, handles[0]) == ["retried", "done"]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_running_task_can_be_cancelled(app: App, kind: str) -> None:
    started = threading.Event()
    noticed = threading.Event()
    if kind == "async":

        @app.task
        async def work() -> None:
            started.set()
            try:
                await asyncio.sleep(SOON)
            finally:
                noticed.set()

    else:

        @app.task
        def work() -> None:
            started.set()
            task = fairlead.current_task()
            assert task is not None
            until = time.monotonic() + SOON
            while not task.cancelled and time.monotonic() < until:
                noticed.wait(0.01)
            if task.cancelled:
                noticed.set()

    handle = work.submit()
    async with running(app) as node:
        assert await asyncio.to_thread(started.wait, SOON)
        app.management.cancel(handle.id)
        assert handle.state() == State.CANCELLED
        assert await asyncio.to_thread(noticed.wait, SOON)
        await settled(app, node)
    assert outcomes(app, handle) == ["cancelled"]


async def test_results_are_kept_when_asked_for(app: App) -> None:
    @app.task(keep_result=True, retry=NoRetry())
    def divide(a: int, b: int) -> float:
        return a / b

    @app.task
    async def nothing() -> None: ...

    good, bad = divide.submit(a=1, b=4), divide.submit(a=1, b=0)
    with pytest.raises(ResultTimeout):
        await good.result_async(timeout=0.05)
    async with running(app):
        assert await good.result_async(timeout=SOON) == 0.25
        with pytest.raises(TaskFailed, match="division by zero"):
            await bad.result_async(timeout=SOON)
    with pytest.raises(ResultNotKept, match="keep_result=True"):
        nothing.submit().result()


@pytest.mark.system_time
async def test_tasks_of_the_process_executor_run_in_child_processes(
    app: App, tmp_path, monkeypatch
) -> None:
    (tmp_path / "sum_app.py").write_text(
        "import os\nimport fairlead\napp = fairlead.App()\n"
        "@app.task(executor='process', keep_result=True)\ndef add(a: int, b: int) -> list[int]:\n"
        "    print('noise on stdout')\n    return [a + b, os.getpid()]\n"
        "@app.task(executor='process')\ndef die() -> None:\n    os._exit(3)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    @app.task(executor="process", keep_result=True)
    def add(a: int, b: int) -> list[int]: ...

    @app.task(executor="process", retry=NoRetry())
    def die() -> None: ...

    dead = die.submit()
    async with running(app, application="sum_app:app"):
        total, pid = await add.submit(a=2, b=3).result_async(SOON)
        assert total == 5
        assert pid != sys.modules["os"].getpid()
        await reaches(app, dead, State.ERROR)
        assert "ended with code 3" in (dead.record().error_text or "")


async def test_a_stuck_task_is_resumed_put_into_error_or_ignored_as_declared(app: App) -> None:
    """SUBMITTED tasks need no such rescue: a sweep of the owner of their partition finds them."""

    @app.task(name="again", processing=Processing(max_stuck=0.05, when_stuck="resume"))
    async def again() -> None: ...

    @app.task(name="person", processing=Processing(max_stuck=0.05, when_stuck="error"))
    async def person() -> None: ...

    @app.task(name="leave", processing=Processing(max_stuck=0.05, when_stuck="ignore"))
    async def leave() -> None: ...

    handles = [task.submit() for task in (again, person, leave)]
    store = app.store
    now = app.clock.now()
    policies = (RESUME_STUCK, 0, IGNORE_STUCK)
    wanted = [
        Claim(handle.id, 1, "hook", now - 1, policy)
        for handle, policy in zip(handles, policies, strict=True)
    ]
    await store.register_node("ghost", [], [], now)
    assert len(await store.claim("ghost", wanted, now)) == 3
    await Pollers(
        store,
        lambda notification: None,
        Silent(),
        app.clock,
        Intervals(),
        lambda reports: None,
        silent_nodes=AsyncMock(),
    ).stuck()
    assert [handle.state() for handle in handles] == [
        State.SUBMITTED,
        State.ERROR,
        State.PROCESSING,
    ]
    assert outcomes(app, handles[0]) == outcomes(app, handles[1]) == ["lost"]
    await store.database.close_async()


@pytest.mark.parametrize("what", ["resume", "error", "ignore"])
async def test_a_stuck_task_is_judged_by_the_policy_of_its_own_application(
    app: App, what: Literal["resume", "error", "ignore"]
) -> None:
    """The poller knows no handlers; the claim stores the policy of the task."""
    if app.channel.decides_order:
        pytest.skip("the channel keeps no ordering keys")
    gate = asyncio.Event()

    @app.task(processing=Processing(max_stuck=0.05, when_stuck=what), on_failure="skip")
    async def slow() -> None:
        await gate.wait()

    handle = slow.options(ordering_key="k").submit()
    following = slow.options(ordering_key="k").submit()
    async with running(app, intervals=Intervals(stuck=1e9), concurrency=1) as node:
        await reaches(app, handle, State.PROCESSING)
        await asyncio.sleep(0.1)
        await Pollers(
            app.store,
            node.parts.context.channel.announce,
            Silent(),
            app.clock,
            Intervals(),
            lambda reports: None,
            silent_nodes=AsyncMock(),
        ).stuck()
        state = handle.state()
        gate.set()
        if what == "error":  # "skip": the next task of the key runs
            await reaches(app, following, State.DONE)
    expected = {
        "resume": State.SUBMITTED,  # the stuck run keeps the only slot
        "error": State.ERROR,
        "ignore": State.PROCESSING,
    }
    assert state == expected[what]


async def test_a_task_whose_arguments_no_longer_fit_its_handler_goes_to_error(app: App) -> None:
    old = App(app.url)

    @old.task(name="pay", queue="default")
    async def pay_old(amount: str) -> None: ...

    @app.task
    async def pay(amount: int) -> None: ...

    handle = pay_old.submit(amount="many")
    await drain(app)
    assert handle.state() == State.ERROR
    assert "payload does not fit task 'pay'" in (handle.record().error_text or "")
    old.close()


async def test_tasks_with_broken_payloads_go_to_error_and_the_worker_continues(app: App) -> None:
    @app.task
    async def pay(amount: int) -> None: ...

    broken = {
        "not utf-8": b'{"amount": "\xff"}',
        "not json": b"{",
        "not zlib": b"zzz",
        "empty": b"",
    }
    handles = {why: pay.submit(amount=1) for why in broken}
    good = pay.submit(amount=1)
    mark = "%s" if app.store.database.dialect == "postgres" else "?"
    with app.store.database.transaction() as connection:
        for why, payload in broken.items():
            kind = "json+zlib" if why == "not zlib" else "json"
            connection.execute(
                f"UPDATE fairlead_tasks SET payload = {mark}, payload_format = {mark} WHERE id = {mark}",
                (payload, kind, handles[why].id),
            )
    await drain(app)
    assert {handle.state() for handle in handles.values()} == {State.ERROR}
    assert good.state() == State.DONE


async def test_a_queue_can_be_paused_and_resumed_while_workers_run(app: App) -> None:
    ran = asyncio.Event()

    @app.task(queue="mail")
    async def send() -> None:
        ran.set()

    async with running(app) as node:
        app.management.pause("mail")
        async with asyncio.timeout(SOON):
            while "mail" not in node.parts.controls.paused:
                await asyncio.sleep(0.01)
        handle = send.submit()
        await asyncio.sleep(0.2)
        assert handle.state() == State.SUBMITTED
        app.management.unpause("mail")
        await asyncio.wait_for(ran.wait(), SOON)
        await settled(app, node)


async def test_runs_that_outlast_the_shutdown_time_are_handed_back(app: App) -> None:
    started = asyncio.Event()

    @app.task
    async def endless() -> None:
        started.set()
        await asyncio.sleep(1000)

    handles = endless.submit_many([{}] * 3)
    async with running(app, drain=0.1):
        await asyncio.wait_for(started.wait(), SOON)
    assert {handle.state() for handle in handles} == {State.SUBMITTED}
    assert app.management.nodes() == []


def test_nothing_is_written_when_one_task_of_a_bulk_submit_is_invalid(app: App) -> None:
    @app.task
    async def pay(amount: int) -> None: ...

    for count in (10, 2500):
        with pytest.raises(InvalidTask, match="Expected `int`"):
            pay.submit_many([{"amount": n} for n in range(count)] + [{"amount": "many"}])
    assert app.management.find() == []


async def test_a_handler_that_ignores_its_cancellation_does_not_keep_a_node_from_stopping(
    app: App,
) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    @app.task
    async def stubborn() -> None:
        started.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    stubborn.submit()
    async with running(app, drain=0.05) as node:
        await asyncio.wait_for(started.wait(), SOON)
    assert node.unstoppable == 1
    release.set()


def ghost_beats(app: App, ago_seconds: float) -> None:
    """Register the node `ghost` with one heartbeat, `ago_seconds` ago."""

    def steps():
        yield app.store.statement(
            "register_node", "ghost", app.clock.now() - round(ago_seconds * 1e6), "[]", "[]", ""
        )

    app.store.database.run(steps())


async def test_tasks_of_a_lost_node_are_resumed_once(app: App) -> None:
    from fairlead.ports.task_store import Claim

    runs: list[int] = []

    @app.task
    async def note(n: int) -> None:
        runs.append(n)

    handles = note.submit_many([{"n": n} for n in range(50)])
    ghost_beats(app, 60)
    now = app.clock.now()
    wanted = [Claim(handle.id, 1, "hook", 1 << 62) for handle in handles]  # never stuck
    assert len(await app.store.claim("ghost", wanted, now)) == 50
    await drain(app)
    assert sorted(runs) == list(range(50))
    assert {tuple(outcomes(app, handle)) for handle in handles} == {("lost", "done")}
    assert app.management.nodes() == []


async def test_the_start_of_a_node_changes_no_task_of_a_living_node(app: App) -> None:
    from fairlead.ports.task_store import Claim

    @app.task(processing=Processing(when_stuck="error"))
    async def note(n: int) -> None: ...

    held = note.submit(n=1)
    ghost_beats(app, 0)
    now = app.clock.now()
    assert len(await app.store.claim("ghost", [Claim(held.id, 1, "hook", 1 << 62)], now)) == 1
    other = note.submit(n=2)
    async with running(app):
        await reaches(app, other, State.DONE)
    record = held.record()
    assert (record.state, record.node, record.version) == (State.PROCESSING, "ghost", 2)
