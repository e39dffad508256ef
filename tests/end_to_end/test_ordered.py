"""Ordered queues in worker processes, one of them killed, and the commands `fairlead ordered`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.core.sharding.partitions import partition_of
from tests.end_to_end.test_command_line import environment, fairlead, fairlead_here, pause
from tests.tiers import matrix

SHOP = """
import asyncio, os, sys, time
import fairlead
app = fairlead.App("sqlite:///shop.db")
app.queue("reminders", kind="ordered", partitions=8)

def note(*words):
    with open("runs.log", "a") as log:
        log.write(" ".join(map(str, words)) + "\\n")

@app.task(queue="reminders")
async def remind(key: str, n: int) -> None:
    note("start", key, n, os.getpid())
    await asyncio.sleep(0.02)
    note("end", key, n, os.getpid())

@app.task(queue="reminders")
async def hang() -> None:
    note("hanging")
    await asyncio.sleep(1000)

@app.task(queue="reminders", retry=fairlead.NoRetry())
def fail() -> None:
    raise ValueError("no luck")

if __name__ == "__main__":
    drafts = [remind.options(ordering_key=f"k{n % 10}").draft(key=f"k{n % 10}", n=n) for n in range(int(sys.argv[1]))]
    for handle in app.submit_many(drafts):
        handle.result(60)
        print(handle.id)
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def submit(folder: Path, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"from shop import *; {code}"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def log_of(folder: Path) -> list[list[str]]:
    path = folder / "runs.log"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def worker_killed_after(folder: Path, lines: int) -> str:
    """Run a worker until the log has so many lines, and kill it; return its pid."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "fairlead", "worker", "shop:app"],
        cwd=folder,
        env=environment(),
        stderr=subprocess.DEVNULL,
    )
    while len(log_of(folder)) < lines:
        pause(worker)
    worker.kill()
    worker.wait()
    return str(worker.pid)


def test_after_a_kill_another_worker_runs_the_tasks_of_each_key_in_order_and_one_at_a_time(
    shop: Path,
) -> None:
    subprocess.run([sys.executable, "shop.py", "200"], cwd=shop, env=environment(), check=True)
    killed = worker_killed_after(shop, 60)
    fairlead(shop, "worker", "shop:app", "--until-empty")
    lines = log_of(shop)
    for key in (f"k{n}" for n in range(10)):
        of_key = [line for line in lines if line[1] == key]
        running: list[str] | None = None
        finished: list[int] = []
        for what, _, n, pid in of_key:
            if what == "start":
                assert running is None or running[1] == killed != pid, (
                    "two tasks of the key run at once"
                )
                running = [n, pid]
            else:
                assert running == [n, pid]
                running = None
                finished.append(int(n))
        expected = list(range(int(key[1:]), 200, 10))
        assert sorted(set(finished)) == expected, "a task is lost"
        assert sorted(finished) == finished, "the tasks ran out of order"
        assert len(finished) <= len(expected) + 1, "a task that was not in flight ran twice"


GATED = """
import asyncio, os, signal, sys
import fairlead
app = fairlead.App()
app.queue("reminders", kind="ordered", partitions=1)

@app.task(queue="reminders")
async def remind(key: str, n: int) -> None:
    with open("runs.log", "a") as log:
        log.write(f"{os.getpid()} {key} {n}\\n")
    while not os.path.exists("gate"):
        await asyncio.sleep(0.05)

async def serve() -> None:
    node = app.node(concurrency=int(sys.argv[1]), lease_seconds=4.0)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, node.stop)
    await node.run()

if __name__ == "__main__":
    asyncio.run(serve())
"""


@pytest.mark.parametrize(
    "stores",
    matrix("URL, postgres", "LOG, kafka; SCHEDULE, migrated_cassandra; COORDINATOR, zookeeper"),
)
def test_a_worker_stopped_for_longer_than_its_lease_starts_no_task_that_waited_in_its_memory(
    stores: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAIRLEAD_URL", raising=False)
    for part, server in (store.split(", ") for store in stores.split("; ")):
        url = request.getfixturevalue(f"{server}_url")
        monkeypatch.setenv(f"FAIRLEAD_{part}", url)
    (tmp_path / "shop.py").write_text(GATED)
    submits = (
        "app.migrate(); [remind.options(ordering_key=f'k{key}').submit(key=f'k{key}', n=n)"
        ".result(60) for n in range(2) for key in range(20)]"
    )
    submit(tmp_path, submits)

    def worker(concurrency: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "shop.py", str(concurrency)]
        return subprocess.Popen(command, cwd=tmp_path, env=environment())

    first = worker(1)
    while not log_of(tmp_path):  # then all others wait in its memory for the one slot
        pause(first)
    os.kill(first.pid, signal.SIGSTOP)
    (tmp_path / "gate").touch()
    second = worker(20)
    try:
        while len(log_of(tmp_path)) < 41:
            pause(second)
        os.kill(first.pid, signal.SIGCONT)
        second.terminate()
        assert second.wait() == 0
        submit(tmp_path, "remind.options(ordering_key='new').submit(key='new', n=0)")
        while log_of(tmp_path)[-1][1] != "new":
            pause(first)
    finally:
        for process in (first, second):
            process.kill()
            process.wait()
    began, *others = log_of(tmp_path)
    assert began[0] == str(first.pid)
    assert [run for run in others if run[0] == began[0]] == [[began[0], "new", "0"]]


def test_the_ordered_commands_show_tasks_attempts_and_status_and_drop_a_task(shop: Path) -> None:
    stuck, failed = submit(
        shop,
        "print(hang.options(ordering_key='a', unique_key='u').submit().id); "
        "remind.options(ordering_key='a').submit(key='a', n=1); "
        "print(fail.options(ordering_key='b').submit().id)",
    ).split()
    worker = subprocess.Popen(
        [sys.executable, "-m", "fairlead", "worker", "shop:app"],
        cwd=shop,
        env=environment(),
        stderr=subprocess.DEVNULL,
    )
    url = ("--url", "sqlite:///shop.db")
    try:
        while ["hanging"] not in log_of(shop):
            pause(worker)
        waiting = json.loads(
            fairlead_here(
                shop, "ordered", "tasks", "reminders", "--ordering-key", "a", "--json", *url
            )
        )
        assert [(each["task"]["name"], each["key"]["unique_key"] == "u") for each in waiting] == [
            ("hang", True),
            ("remind", False),
        ]
        assert "hang" in fairlead_here(shop, "ordered", "tasks", "reminders", *url)
        dropped = json.loads(
            fairlead_here(shop, "ordered", "drop", "reminders", "a", "--yes", "--json", *url)
        )
        assert dropped["dropped"]["unique_key"] == "u"
        while ["end", "a", "1", str(worker.pid)] not in log_of(shop):
            pause(worker)
    finally:
        worker.terminate()
        assert worker.wait() == 0
    (attempt,) = json.loads(fairlead_here(shop, "tasks", "show", stuck, "--json", *url))["attempts"]
    assert (attempt["outcome"], attempt["next_state"]) == ("cancelled", "CANCELLED")
    assert "no luck" in fairlead_here(shop, "tasks", "show", failed, *url)
    (queue,) = json.loads(fairlead_here(shop, "ordered", "--queue", "reminders", "--json", *url))
    views = queue["partitions"]
    assert [view["partition"] for view in views] == list(range(8))
    assert {view["unfinished"] for view in views} == {view["lag"] for view in views} == {0}
    assert "0 tasks in the schedule, 0 entries in the log" in fairlead_here(shop, "doctor", *url)
    assert fairlead_here(shop, "ordered", "--queue", "reminders", *url)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a shop whose store knows its queue, for tests that change nothing."""
    folder = tmp_path_factory.mktemp("known")
    (folder / "shop.py").write_text(SHOP)
    submit(folder, "app.node()")
    return folder


@pytest.mark.parametrize(
    ("arguments", "exits", "why"),
    [
        (["tasks", "unknown"], 2, "no queue named 'unknown' is known; known: reminders"),
        (["tasks", "reminders", "--rows", "0"], 2, "Expected `int` >= 1 - at `$.rows`"),
        (
            ["tasks", "reminders", "--ordering-key", "a", "--partition", "{other}"],
            2,
            "'a' is in partition {its_own}, not {other}",
        ),
        (
            ["tasks", "reminders", "--partition", "8"],
            2,
            "partition of queue 'reminders' 8: use a whole number from 0 to 7",
        ),
        (["drop", "reminders", "a", "--unique-key", "u", "--yes"], 2, "both run_at and unique_key"),
        (
            ["drop", "reminders", "a", "--unique-key", "u", "--run-at", "soon", "--yes"],
            2,
            "run_at 'soon'",
        ),
        (
            ["drop", "reminders", "", "--unique-key", "u", "--run-at", "2030-01-01", "--yes"],
            2,
            "ordering_key is empty",
        ),
        (["drop", "reminders", "nobody"], 2, "cannot be undone: add --yes"),
        (["drop", "reminders", "nobody", "--yes"], 1, "no task of ordering key 'nobody' waits"),
    ],
)
def test_wrong_use_of_the_ordered_commands_is_refused_with_its_reason(
    known: Path, arguments: list[str], exits: int, why: str
) -> None:
    its_own = partition_of("a", 0, 8)
    names = {"its_own": its_own, "other": (its_own + 1) % 8}
    arguments, why = [argument.format(**names) for argument in arguments], why.format(**names)
    url = ("--url", "sqlite:///shop.db")
    assert why in fairlead_here(known, "ordered", *arguments, *url, exits=exits)


def test_a_task_can_be_dropped_by_its_time_in_microseconds_or_as_iso_8601(shop: Path) -> None:
    url = ("--url", "sqlite:///shop.db")
    submit(
        shop,
        "from datetime import *; [remind.options(ordering_key='ü|,', unique_key='\"u\" 2', "
        "run_at=datetime(2030, 1, 1, 0, 0, second, tzinfo=timezone.utc)).submit(key='x', n=second) "
        "for second in (0, 1)]",
    )
    for form in ("1893456000000000", "2030-01-01T00:00:01+00:00"):
        args = ["ordered", "drop", "reminders", "ü|,", "--unique-key", '"u" 2', "--run-at", form]
        assert "2030-01-01 00:00:0" in fairlead_here(shop, *args, "--yes", *url)
    fairlead(shop, "worker", "shop:app", "--until-empty")
    assert json.loads(fairlead_here(shop, "ordered", "tasks", "reminders", "--json", *url)) == []
