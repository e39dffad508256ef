"""Kills of workers, restarts of the server and stopped processes lose no task, and only tasks in
flight run twice."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fairlead import App, State
from fairlead.declare.options import Options
from fairlead.declare.task import Draft
from fairlead.engine.liveness import HEARTBEAT_SECONDS
from fairlead.model import Outcome
from services.postgres import PostgresServer
from tests.builders import idle
from tests.conftest import url_of
from tests.end_to_end.workers import Crew
from tests.tiers import NIGHTLY


def app_of(url: str) -> App:
    """The crash application, in this process."""
    app = App(url)
    app.queue("crash", partitions=6, order=os.environ.get("CRASH_ORDER", "fair") or None)
    app.migrate()
    idle(app, "work", queue="crash")

    @app.task(queue="crash")
    def load(n: int) -> None: ...

    @app.task(queue="crash", transactional=True)
    async def effect_async(n: int, connection) -> None: ...

    @app.task(queue="crash", transactional=True)
    def effect_thread(n: int, connection) -> None: ...

    return app


def submit(app: App, name: str, numbers: range, **options: Any) -> None:
    given = Options().changed(options)
    app.submit_many([Draft(app.handlers[name], (), {"n": n}, given) for n in numbers])


def wait_until_finished(app: App, crew: Crew) -> None:
    def unfinished() -> tuple[int, int]:
        return app.store.database.read_now(app.store.unfinished(["crash"]))

    crew.wait_until(lambda: not unfinished()[0])
    assert unfinished() == (0, 0), "no task is in error"


def wait_for_runs(crew: Crew, count: int) -> None:
    """Wait until so many tasks have begun; the trace of the workers alone shows this."""
    crew.wait_until(lambda: len(crew.runs()) >= count)


def kill_after(crew: Crew, *counts: int) -> None:
    """Kill a worker each time so many tasks have begun."""
    for count in counts:
        wait_for_runs(crew, count)
        crew.kill_one()


def judge(crew: Crew, numbers: range) -> int:
    """Check that every task ran, and that each task that ran twice was in flight at a kill. Return
    the number of tasks that ran twice."""
    runs = crew.runs()
    lost = [n for n in numbers if n not in runs]
    assert not lost, f"seed {crew.seed}: lost {lost[:5]} ({len(lost)})"
    twice = {n: those for n, those in runs.items() if len(those) > 1}
    for n, those in twice.items():
        for pid, at in sorted(those, key=lambda run: run[1])[:-1]:
            assert pid in crew.killed, (
                f"seed {crew.seed}: task {n} ran again though process {pid} was not killed"
            )
            assert crew.killed[pid] - at < 3, (
                f"seed {crew.seed}: task {n} had long ended when {pid} was killed"
            )
    return len(twice)


def test_kill_9_loses_no_task_and_repeats_only_what_was_in_flight(
    store_url: str, tmp_path: Path
) -> None:
    app = app_of(store_url)
    numbers = range(1500)
    with Crew(store_url, tmp_path, 3) as crew:
        submit(app, "work", numbers)
        kill_after(crew, 300, 600, 900)
        wait_until_finished(app, crew)
    judge(crew, numbers)
    assert app.management.find(state=State.PROCESSING) == []
    app.close()


@pytest.mark.parametrize(
    ("store", "workers"), [("sqlite", 2), ("postgres", 1)], ids=["another lives", "only a new one"]
)
def test_a_killed_worker_is_known_to_be_dead_by_its_lock(
    store: str, workers: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = url_of(store, request)
    app = app_of(url)
    with Crew(url, tmp_path, workers, seconds=60) as crew:
        submit(app, "work", range(20))
        wait_for_runs(crew, 20)
        crew.wait_until(lambda: crew.started == workers)
        time.sleep(2 * HEARTBEAT_SECONDS)  # each node has seen a heartbeat of the other
        [(busiest, _)] = Counter(runs[0][0] for runs in crew.runs().values()).most_common(1)
        [victim] = [process for process in crew.processes if process.pid == busiest]
        victim.kill()
        victim.wait()
        if workers == 1:
            crew.processes.append(crew.start())
        theirs = {n for n, runs in crew.runs().items() if runs[0][0] == victim.pid}
        assert theirs
        crew.wait_until(lambda: {n for n, runs in crew.runs().items() if len(runs) == 2} == theirs)
        assert "nodes died" in crew.log.read_text()  # found by its lock, not by its silence
        for process in crew.processes:
            process.kill()
    app.close()


def test_the_next_attempt_begins_after_the_checkpoint_of_a_killed_worker(
    store_url: str, tmp_path: Path
) -> None:
    app = app_of(store_url)
    with Crew(store_url, tmp_path, 1) as crew:
        submit(app, "load", range(20, 21))
        (handle,) = [app.handle(task.id) for task in app.management.find(limit=2)]
        crew.wait_until(lambda: -1 in crew.runs() and handle.progress())
        seen = handle.progress()
        assert seen is not None and seen.attempt == 1
        crew.kill_one()
        wait_until_finished(app, crew)
        rows = crew.runs()
    assert len(rows.pop(-1)) == 1
    assert {row: len(runs) for row, runs in rows.items()} == dict.fromkeys(range(20), 1)
    ended = handle.progress()
    assert ended is not None and (ended.done, ended.attempt) == (19, 2)
    app.close()


@pytest.mark.parametrize("name", ["effect_async", "effect_thread"])
def test_transactional_effects_happen_exactly_once_whenever_the_worker_dies(
    store_url: str, tmp_path: Path, name: str
) -> None:
    app = app_of(store_url)
    with app.store.database.transaction() as connection:
        connection.execute("CREATE TABLE effects (n integer)")
    numbers = range(300)
    with Crew(store_url, tmp_path, 2) as crew:
        submit(app, name, numbers)
        kill_after(crew, 100, 200)
        wait_until_finished(app, crew)
    with app.store.database.transaction() as connection:
        effects = Counter(row[0] for row in connection.execute("SELECT n FROM effects").fetchall())
        follows = connection.execute(
            "SELECT count(*) FROM fairlead_attempts WHERE name = 'follow' AND outcome = 'done'"
        ).fetchall()[0][0]
    assert effects == Counter(numbers), f"seed {crew.seed}"
    assert follows == len(numbers), f"seed {crew.seed}"
    app.close()


@NIGHTLY("an outage")
def test_workers_live_through_a_restart_of_postgresql(tmp_path: Path) -> None:
    with PostgresServer() as server:  # a server of this test, since others share the session's
        url = server.create_database()
        app = app_of(url)
        numbers = range(3000)
        with Crew(url, tmp_path, 2) as crew:
            submit(app, "work", numbers)
            crew.wait_until(lambda: crew.runs() and crew.started == 2)
            server.restart("immediate")
            wait_until_finished(app, crew)
            assert [process.poll() for process in crew.processes] == [None, None]
        runs = crew.runs()
        assert set(runs) == set(numbers)
        app.close()


def test_a_stopped_node_loses_its_tasks_and_cannot_complete_them(
    store_url: str, tmp_path: Path
) -> None:
    """The process is stopped while its tasks run but no transaction is open: on SQLite, a process
    stopped inside a transaction blocks every other writer."""
    app = app_of(store_url)
    with Crew(store_url, tmp_path, 1, seconds=4) as crew:
        submit(app, "work", range(60))
        wait_for_runs(crew, 60)
        time.sleep(0.5)
        (first,) = crew.processes
        os.kill(first.pid, signal.SIGSTOP)
        try:
            crew.processes.append(crew.start())
            wait_until_finished(app, crew)
        finally:
            os.kill(first.pid, signal.SIGCONT)
        submit(app, "work", range(60, 80))  # both workers continue
        wait_until_finished(app, crew)
        assert [process.poll() for process in crew.processes] == [None, None]
    assert set(crew.runs()) == set(range(80))
    with app.store.database.transaction() as connection:
        outcomes = Counter(
            row[0]
            for row in connection.execute(
                "SELECT outcome FROM fairlead_attempts WHERE name = 'work'"
            ).fetchall()
        )
    assert outcomes == {
        Outcome.DONE: 80,
        Outcome.LOST: 60,
    }  # each task is completed once, by its last claimant
    app.close()
