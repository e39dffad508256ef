"""`fairlead replay` from the command line, with real worker processes, on SQLite and PostgreSQL, and
with invalid arguments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead import App
from tests.end_to_end.test_command_line import fairlead_here

pytestmark = pytest.mark.slow


def trace(path: Path, jobs: int, run: int = 0, every: int = 1) -> Path:
    """Write a trace of jobs of `run` seconds each, submitted every `every` seconds. Job n belongs to
    user n % 5 + 2 if n is a multiple of 4, else to user 1."""
    lines = (
        f"{n} {n * every} -1 {run} 1 -1 -1 -1 1200 -1 -1 {n % 5 + 2 if n % 4 == 0 else 1} {n % 2} -1 -1 1 -1 -1"
        for n in range(1, jobs + 1)
    )
    path.write_text("; Version: 2\n" + "".join(f"{line}\n" for line in lines))
    return path


def fairlead(*arguments: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run the command line, and return its exit code and output."""
    command = [sys.executable, "-m", "fairlead", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def workers_of(folder: Path) -> list[int]:
    """Return the worker processes of replays whose temporary folder is inside `folder`."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                is_ours = (
                    f"FAIRLEAD_REPLAY_FOLDER={folder}".encode()
                    in (process / "environ").read_bytes()
                )
            except OSError:
                continue
            if is_ours:
                found.append(int(process.name))
    return found


def have_ended(folder: Path, within: float = 10) -> bool:
    """Return whether all workers of `workers_of` end in `within` seconds."""
    end = time.monotonic() + within
    while workers_of(folder) and time.monotonic() < end:
        time.sleep(0.05)
    return not workers_of(folder)


def test_every_job_runs_exactly_once_as_the_report_says(tmp_path: Path, store_url: str) -> None:
    if store_url.startswith("postgres"):
        App(store_url).migrate()
    path = trace(tmp_path / "t.swf", 3000)
    done = fairlead("replay", path, "--url", store_url, "--workers", 2, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {
        key: report[key] for key in ("submitted", "finished", "lost", "ran_twice", "bad_lines")
    } == {
        "submitted": 3000,
        "finished": 3000,
        "lost": 0,
        "ran_twice": 0,
        "bad_lines": 0,
    }
    assert report["tasks_per_s"] > 0
    assert report["pickup_delay_heaviest"]["tenant"] == "user-1"
    assert report["pickup_delay_heaviest"]["tasks"] == 2250
    assert 0 <= report["pickup_delay"]["p50_ms"] <= report["pickup_delay"]["p99_ms"]
    # The store has no unfinished task.
    app = App(store_url)
    assert app.management.find() == []
    app.close()


def test_jobs_are_submitted_and_run_at_the_scaled_times(tmp_path: Path, sqlite_url: str) -> None:
    path = trace(tmp_path / "t.swf", 20, run=100, every=10)
    done = fairlead(
        "replay", path, "--url", sqlite_url, "--workers", 1, "--time-scale", 0.01, "--json"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    # 19 gaps of 10 s and the last run of 100 s, a hundred times faster; 20 runs of 1 s overlap.
    assert 2.9 <= report["seconds"] < 6
    assert report["pickup_delay"]["p50_ms"] < 500


def test_a_replay_with_fresh_drops_its_schema_of_postgresql_at_the_end(
    tmp_path: Path, postgres_url: str
) -> None:
    import psycopg

    path = trace(tmp_path / "t.swf", 300)
    done = fairlead(
        "replay", path, "--url", postgres_url, "--fresh", "--tenants", "group", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["finished"] == 300
    with psycopg.connect(postgres_url) as connection:
        left = connection.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'fairlead%'"
        ).fetchall()
        tables = connection.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        ).fetchone()
    assert (left, tables) == ([], (0,))


def test_a_store_with_tasks_is_refused_and_not_changed(tmp_path: Path, sqlite_url: str) -> None:
    app = App(sqlite_url)

    @app.task
    def other() -> None: ...

    handle = other.submit()
    app.close()
    done = fairlead("replay", trace(tmp_path / "t.swf", 5), "--url", sqlite_url)
    assert done.returncode == 2
    assert "needs an empty store" in done.stderr
    assert [task.id for task in App(sqlite_url).management.find()] == [handle.id]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--order", "lifo"], "--order lifo"),
        (["--time-scale", "-1"], "--time-scale -1.0"),
        (["--time-scale", "nan"], "--time-scale nan"),
        (["--workers", "0"], "--workers"),
        (["--tenants", "queue"], "--tenants"),
    ],
)
def test_an_invalid_argument_is_named_in_the_error_and_exits_with_code_2(
    tmp_path: Path, arguments: list[str], text: str
) -> None:
    path = str(trace(tmp_path / "t.swf", 5))
    assert text in fairlead_here(tmp_path, "replay", path, "--fresh", *arguments, exits=2)


def test_an_invalid_line_stops_the_replay_before_the_first_submit(
    tmp_path: Path, sqlite_url: str
) -> None:
    path = trace(tmp_path / "t.swf", 50)
    path.write_text(path.read_text() + "51 1 2\n")
    done = fairlead("replay", path, "--url", sqlite_url)
    assert done.returncode == 2
    assert "line 52: it has 3 fields, not 18" in done.stderr
    assert not Path(sqlite_url.removeprefix("sqlite:///")).exists()

    done = fairlead("replay", path, "--url", sqlite_url, "--skip-bad", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["bad_lines"], report["finished"]) == (1, 50)


@pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="needs /proc, which only Linux has"
)
@pytest.mark.parametrize("signal_sent", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_is_left_when_the_replay_is_stopped_or_killed(
    tmp_path: Path, signal_sent: signal.Signals
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [
        sys.executable,
        "-m",
        "fairlead",
        "replay",
        str(trace(tmp_path / "t.swf", 50, run=100)),
        "--fresh",
    ]
    environment = {**os.environ, "TMPDIR": str(folder)}
    replaying = subprocess.Popen(
        [*command, "--time-scale", "10"], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        end = time.monotonic() + 30
        while len(workers_of(folder)) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        assert len(workers_of(folder)) == 2
        time.sleep(1)
        replaying.send_signal(signal_sent)
        _, errors = replaying.communicate(timeout=30)
    finally:
        replaying.kill()
        replaying.wait()
    assert have_ended(folder)
    if signal_sent is signal.SIGINT:
        assert replaying.returncode == 130
        assert "Traceback" not in errors
        assert list(folder.iterdir()) == []
