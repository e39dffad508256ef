"""The command line as a person uses it: real processes, exit codes, and errors of one line."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fairlead import App
from fairlead.cli.main import app
from tests.builders import idle

ROOT = Path(__file__).parents[2]

SHOP = """
import asyncio
import fairlead
app = fairlead.App("sqlite:///shop.db")

@app.task
async def pay(partner: str, amount: int = 1) -> None:
    print("paid", partner, amount, flush=True)

@app.task(retry=fairlead.Fixed(0.01, max_attempts=2))
async def fail() -> None:
    raise ValueError("no luck")

@app.task
async def hang() -> None:
    print("hanging", flush=True)
    await asyncio.sleep(1000)
"""


PLAIN = {"NO_COLOR": "1", "COLUMNS": "200"}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), **PLAIN}


def start_worker(
    folder: Path, *options: str, stderr: int = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Start a worker of `shop:app`, whose output the test reads."""
    return subprocess.Popen(
        [sys.executable, "-m", "fairlead", "worker", "shop:app", *options],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def pause(process: subprocess.Popen[Any]) -> None:
    """Leave the processor to others for a moment, in a loop that looks for what `process` does. Fail
    if the process has ended."""
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)


def fairlead(folder: Path, *arguments: str, exits: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    return _checked(arguments, exits, done.returncode, done.stdout, done.stderr)


def fairlead_here(folder: Path, *arguments: str, exits: int = 0) -> str:
    """Run a command as `fairlead` does, but in this process: most of the time of a short command is
    the start of its process."""
    path, known = [*sys.path], set(sys.modules)
    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, arguments, env=PLAIN, terminal_width=200)
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]
    return _checked(arguments, exits, done.exit_code, done.stdout, done.stderr)


def _checked(arguments: tuple[str, ...], exits: int, code: int, stdout: str, stderr: str) -> str:
    assert code == exits, f"{arguments}: exit code {code}\n{stdout}\n{stderr}"
    if exits == 2:
        assert "Traceback" not in stderr
        if "Usage" not in stderr:
            assert len(stderr.strip().splitlines()) == 1, stderr
    return stdout + stderr


# Commands that need no application run in the process of the test.


def test_a_new_user_can_submit_run_inspect_retry_and_pause(shop: Path) -> None:
    for n in range(3):
        fairlead(
            shop,
            "submit",
            "shop:app",
            "pay",
            json.dumps({"partner": "acme", "amount": n}),
            "--fairness-key",
            "acme",
        )
    failing = fairlead(shop, "submit", "shop", "fail").strip()
    url = ("--url", "sqlite:///shop.db")
    listed = fairlead_here(shop, "tasks", *url, "--json", "--fairness-key", "acme")
    assert len(json.loads(listed)["tasks"]) == 3
    output = fairlead(shop, "worker", "shop:app", "--until-empty")
    assert output.count("paid acme") == 3
    assert "tasks_in_error=1" in output
    shown = json.loads(fairlead_here(shop, "tasks", "show", failing, *url, "--json"))
    assert (shown["task"]["state"], len(shown["attempts"])) == ("ERROR", 2)
    error = shown["task"]["error_text"]
    assert error.split("\n")[:2] == ["no luck", "Traceback (most recent call last):"]
    assert error.split("\n")[2].endswith(", in fail")  # none of our frames
    printed = fairlead_here(shop, "tasks", "show", failing, *url)
    assert error.strip() in printed and printed.count("Traceback") == 1
    assert "1 task in ERROR" in fairlead(shop, "doctor", "--app", "shop:app", exits=1)
    assert "ERROR after 2 attempts" in printed
    assert "retry: 1 changed" in fairlead_here(shop, "tasks", "retry", "--all", *url)
    fairlead(shop, "worker", "shop:app", "--until-empty")
    assert "fail: 1 changed" in fairlead_here(shop, "tasks", "fail", failing, *url)
    assert "cannot be retried" in fairlead_here(shop, "tasks", "retry", failing, *url, exits=1)
    (queue,) = json.loads(fairlead_here(shop, "queues", *url, "--json"))["queues"]
    assert (queue["backlog"]["number"], queue["errors"]["number"]) == (0, 0)
    tenants = ("tenants", "weight", "default")
    assert "weight: 1 changed" in fairlead_here(shop, *tenants, "2.5", "acme", *url)
    shown = json.loads(fairlead_here(shop, "queues", "show", "default", *url, "--json"))
    assert [(each["fairness_key"], each["weight"]) for each in shown["keys"]] == [("acme", 2.5)]
    (partition,) = shown["partitions"]
    assert partition["owner"] is None  # the worker released it
    assert partition["range_id"] is None  # no level is stored
    assert "nobody" in fairlead_here(shop, "queues", "show", "default", *url)
    assert "weight: 1 changed" in fairlead_here(shop, *tenants, "none", "acme", *url)
    assert "done" in fairlead_here(shop, "queues", "pause", "default", *url)
    assert "default is paused" in fairlead_here(shop, "doctor", *url)
    fairlead_here(shop, "queues", "resume", "default", *url)


def test_a_bulk_change_of_many_tasks_is_asked_for(shop: Path) -> None:
    url = f"sqlite:///{shop / 'shop.db'}"
    shop_app = App(url)
    shop_app.migrate()
    pay = idle(shop_app, "pay")
    later = datetime.now(UTC) + timedelta(hours=1)
    pay.options(run_at=later).submit_many([{}] * 1100)
    cancel = ("tasks", "cancel", "--all", "--url", url)
    assert "more than 100 match" in fairlead_here(shop, *cancel, exits=2)
    assert "would be changed: 1,100" in fairlead_here(shop, *cancel, "--dry-run")
    preview = json.loads(fairlead_here(shop, *cancel, "--dry-run", "--json"))
    assert (preview["changed"], len(preview["first"])) == (1100, 5)
    assert "cancel: 100 changed" in fairlead_here(shop, *cancel, "--limit", "100")
    assert "cancel: 1,000 changed" in fairlead_here(shop, *cancel, "--yes")
    assert "cancel: 0 changed" in fairlead_here(shop, *cancel)
    one = pay.options(run_at=later).submit()
    assert "--version" in fairlead_here(shop, *cancel, "--version", "1", exits=2)
    fairlead_here(shop, "tasks", "cancel", one.id, "--version", "x", "--url", url, exits=2)
    assert "cancel: 1 changed" in fairlead_here(shop, "tasks", "cancel", one.id[:-2], "--url", url)
    shop_app.close()


def test_a_bulk_change_that_leaves_tasks_unchanged_exits_with_code_1(shop: Path) -> None:
    url = f"sqlite:///{shop / 'shop.db'}"
    shop_app = App(url)
    shop_app.migrate()
    pay = idle(shop_app, "pay")
    pay.submit_many([{}] * 3)
    retry = ("tasks", "retry", "--all", "--state", "SUBMITTED", "--url", url)
    output = fairlead_here(shop, *retry, exits=1)
    assert "retry: 0 changed" in output and "refused: 3: their state does not allow it" in output
    done = json.loads(fairlead_here(shop, *retry, "--json", exits=1))
    assert (done["changed"], done["refused"]) == (0, 3)
    known, unknown = pay.submit().id, str(uuid.uuid4())
    output = fairlead_here(shop, "tasks", "cancel", known, unknown, "--url", url, exits=1)
    assert "cancel: 1 changed" in output and f"refused: no task {unknown}" in output.replace(
        "'", ""
    )
    shop_app.close()


def test_a_person_can_give_waiting_tasks_another_priority_or_key(shop: Path) -> None:
    url = ("--url", "sqlite:///shop.db")
    pay = ("submit", "shop:app", "pay", '{"partner": "a"}', "--fairness-key")
    first, second = (fairlead(shop, *pay, key).strip() for key in ("acme", "umbrella"))
    change = ("tasks", "change", *url)
    assert "change: 1 changed" in fairlead(
        shop, *change, first, "--priority", "0", "--version", "1"
    )
    stale = fairlead(shop, *change, first, "--priority", "1", "--version", "1", exits=1)
    assert "is at version 2, not 1" in stale
    to_bulk = ("--all", "--fairness-key", "umbrella", "--new-fairness-key", "bulk", "--json")
    done = json.loads(fairlead(shop, *change, *to_bulk))
    assert (done["id"], done["changed"], done["refused"], done["state"]) == ("1", 1, 0, "done")
    found = json.loads(fairlead(shop, "tasks", *url, "--json"))["tasks"]
    assert {(task["id"], task["priority"], task["fairness_key"]) for task in found} == {
        (first, 0, "acme"),
        (second, 5, "bulk"),
    }
    fairlead(shop, "worker", "shop:app", "--until-empty")
    refused = fairlead(shop, *change, first, "--priority", "1", exits=1)
    assert "is finished and cannot be changed" in refused
    assert "--new-fairness-key acme-bulk" in fairlead(shop, "tasks", "change", "--help")


def test_a_person_can_list_and_change_periodic_tasks(shop: Path) -> None:
    with (shop / "shop.py").open("a") as code:
        code.write("\n@app.periodic('0 2 * * *')\n@app.task\nasync def nightly() -> None: ...\n")
    url = ("--url", "sqlite:///shop.db")
    fairlead_here(shop, "migrate", *url)
    assert json.loads(fairlead_here(shop, "periodic", *url, "--json")) == []
    assert "known: none" in fairlead_here(shop, "periodic", "pause", "nightly", *url, exits=1)
    assert "--app" in fairlead_here(shop, "periodic", "run", "nightly", *url, exits=1)
    task_id = fairlead(shop, "periodic", "run", "nightly", "--app", "shop:app").split()[-1]
    assert "no periodic task 'hourly' in this application; it has nightly" in fairlead(
        shop, "periodic", "run", "hourly", "--app", "shop:app", exits=1
    )
    fairlead(shop, "worker", "shop:app", "--until-empty")
    shown = json.loads(fairlead_here(shop, "tasks", "show", task_id, *url, "--json"))
    assert shown["task"]["state"] == "DONE"
    fairlead_here(shop, "periodic", "pause", "nightly", *url)
    (found,) = json.loads(fairlead_here(shop, "periodic", *url, "--json"))
    record = found["record"]
    assert (record["name"], record["cron"], record["paused"]) == ("nightly", "0 2 * * *", True)
    assert (found["is_declared"], found["next_slot_at"]) == (True, None)
    assert "paused" in fairlead_here(shop, "periodic", *url)
    resumed = fairlead_here(shop, "periodic", "resume", "nightly", *url, "--json")
    assert json.loads(resumed) == {"done": True}
    remove = ("periodic", "remove", "nightly", *url)
    assert "cannot be undone: add --yes" in fairlead_here(shop, *remove, exits=2)
    assert "declared by worker" in fairlead_here(shop, *remove, "--yes", exits=1)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("worker", "nowhere:app"), "no module named 'nowhere'"),
        (("worker", "shop:other"), "has no App named 'other'; it has app"),
        (("worker", "shop:app", "--queues", "nothing"), "no queue named 'nothing'"),
        (("submit", "shop:app", "pay", '{"amount": 3}'), "missing required field `partner`"),
        (("submit", "shop:app", "pay", "nonsense"), "give a JSON object"),
        (
            ("submit", "shop:app", "pay", '{"partner": "a"}', "--weight", "0"),
            "weight 0.0: use a number",
        ),
        (
            ("submit", "shop:app", "pay", '{"partner": "a"}', "--priority", "11"),
            "priority 11: use a whole number",
        ),
        (("submit", "shop:app", "typo"), "no task named 'typo'"),
        (("tasks", "--url", "mysql://root:secret@host/x"), "is of no known kind"),
        (("tasks", "--url", "postgresql://app:secret@127.0.0.1:1/x"), "127.0.0.1:1"),
        (("queues", "show", "nothing", "--url", "sqlite:///shop.db"), "no queue named 'nothing'"),
        (
            ("tenants", "weight", "default", "2", "--url", "sqlite:///shop.db"),
            "give the names of tenants",
        ),
        (("tenants", "limit", "default", "x", "a"), "limit: use a whole number"),
        (("tasks", "--json", "show", "x"), "give the options after show"),
        (("tasks", "cancel", "x", "--queue", "mail"), "--queue: is for --all only"),
        (("tasks", "--url", "sqlite:///shop.db", "--app", "shop:app"), "give --url, or --app"),
        (("tasks",), "no URL says where tasks live"),
        (
            ("tasks", "--url", "sqlite:///shop.db", "--older-than", "soon"),
            "duration 'soon'",
        ),
        (
            ("tasks", "retry", "--url", "sqlite:///shop.db", "--all", "--older-than", "soon"),
            "duration 'soon'",
        ),
        (("tasks", "cancel", "--url", "sqlite:///shop.db"), "give the ids of tasks, or --all"),
        (
            ("tasks", "change", "x", "--url", "sqlite:///shop.db"),
            "give a priority, a fairness key, or both",
        ),
        (("tasks", "change", "x", "--priority", "10"), "Expected `int` <= 9"),
        (
            ("tenants", "weight", "default", "acme", "2", "--url", "sqlite:///shop.db"),
            "weight: use a number or none",
        ),
    ],
)
def test_wrong_use_prints_one_line_and_exits_with_code_2(
    shop: Path, arguments: tuple[str, ...], expected: str
) -> None:
    (shop / "shop.db").touch()  # a database without tables
    run = fairlead if arguments[0] == "worker" else fairlead_here
    output = run(shop, *arguments, exits=2)
    assert expected in output
    assert "secret" not in output


@pytest.mark.parametrize("workers", [(), ("--workers", "2")])
def test_a_port_of_metrics_that_is_taken_ends_the_worker_before_it_runs_a_task(
    shop: Path, workers: tuple[str, ...]
) -> None:
    fairlead(shop, "submit", "shop:app", "pay", '{"partner": "acme"}')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = ("worker", "shop:app", "--until-empty", "--metrics-port", port, *workers)
        output = fairlead(shop, *command, exits=2)
    (line,) = output.strip().splitlines()
    assert f"127.0.0.1:{port}: Address already in use; give another --metrics-port" in line
    url = ("--url", "sqlite:///shop.db")
    (task,) = json.loads(fairlead_here(shop, "tasks", *url, "--json"))["tasks"]
    assert (task["state"], task["version"]) == ("SUBMITTED", 1)
    assert "paid acme" in fairlead(shop, *command)  # the port is free now


def on_a_terminal(folder: Path, columns: int, *arguments: str) -> str:
    """Return the output of a command on a terminal of so many columns."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    known = {key: value for key, value in environment().items() if key != "COLUMNS"}
    command = [sys.executable, "-m", "fairlead", *arguments]
    process = subprocess.Popen(
        command, cwd=folder, env=known | {"TERM": "xterm"}, stdin=its, stdout=its, stderr=its
    )
    os.close(its)
    output = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while data := os.read(ours, 65_536):
            output += data
    os.close(ours)
    assert process.wait() == 0, output
    return re.sub(r"\x1b\[[\d;]*m", "", output.decode())


def test_tables_on_a_terminal_of_80_columns_show_whole_ids(shop: Path) -> None:
    with (shop / "shop.py").open("a") as code:
        code.write("\napp.queue('later', kind='ordered')\n@app.task(queue='later')\n")
        code.write("async def remind() -> None: ...\n")
    url = ("--url", "sqlite:///shop.db")
    submit = ("submit", "shop:app", "pay", '{"partner": "a"}', "--fairness-key")
    ids = [fairlead(shop, *submit, f"a-long-key-of-a-tenant/{n}").strip() for n in range(2)]
    late = ("--ordering-key", "account-77", "--run-at", "2099-01-01T00:00:00+00:00")
    ordered = fairlead(shop, "submit", "shop:app", "remind", *late).strip()
    for command, shown in ((), ids), (("show", ids[0]), ids[:1]):
        lines = on_a_terminal(shop, 80, "tasks", *command, *url).splitlines()
        assert all(len(line) <= 80 for line in lines), lines
        assert all(any(id in line for line in lines) for id in shown), lines
    fairlead(shop, "worker", "shop:app", "--until-empty")
    lines = on_a_terminal(shop, 80, "tasks", "--state", "DONE", *url).splitlines()
    assert all(any(id in line for line in lines) for id in ids), lines
    lines = on_a_terminal(shop, 80, "ordered", "tasks", "later", *url).splitlines()
    assert any(ordered in line for line in lines), lines


def test_the_first_signal_drains_and_the_second_ends_at_once(shop: Path) -> None:
    fairlead(shop, "submit", "shop:app", "hang")
    for signals, code in ((1, 0), (2, 128 + signal.SIGINT)):
        worker = start_worker(shop, "--drain", "0.2" if signals == 1 else "60")
        assert worker.stdout is not None
        assert worker.stderr is not None
        assert worker.stdout.readline() == "hanging\n"
        worker.send_signal(signal.SIGINT)
        if signals == 2:
            while "stopping" not in worker.stderr.readline():
                pass
            worker.send_signal(signal.SIGINT)
        assert worker.wait(20) == code
        worker.stdout.close()
        worker.stderr.close()
        if signals == 1:
            listed = fairlead(shop, "tasks", "--url", "sqlite:///shop.db", "--json")
            (task,) = json.loads(listed)["tasks"]
            assert task["state"] == "SUBMITTED"


def test_a_new_process_prints_its_help_its_version_and_the_schema(shop: Path) -> None:
    assert "worker" in fairlead(shop, "--help")
    assert fairlead(shop, "--version").strip() == "0.1.0"
    assert "CREATE TABLE fairlead_tasks" in fairlead(
        shop, "migrate", "--print", "--url", "postgresql://nobody@127.0.0.1:1/x"
    )
