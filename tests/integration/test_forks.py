"""Forked processes, as those of gunicorn and of multiprocessing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fairlead import App
from fairlead.backends.sqlite.presence import FilePresence
from fairlead.backends.sqlite.writer_lock import WriterLock
from tests.end_to_end.test_command_line import environment

APP = """
import asyncio, os, signal, sys
from pathlib import Path
import fairlead
app = fairlead.App("sqlite:///shop.db")

@app.task
async def pay(amount: int) -> None: ...

app.migrate()
pay.submit(amount=0)

def until_asked():
    os.write(1, b"ready\\n")
    os.read(0, 1)
"""

DAEMON = """
if os.fork():
    os._exit(0)
until_asked()
for amount in range(1, 4):
    pay.submit(amount=amount)
app.close()
"""

ASYNCHRONOUS = """
asyncio.run(pay.submit_async(amount=1))
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.alarm(30)  # a guard against a hang
asyncio.run(pay.submit_async(amount=2))
os._exit(0)
"""

LOCKED = """
from fairlead.backends.sqlite.presence import FilePresence
from fairlead.backends.sqlite.writer_lock import WriterLock

locks = FilePresence(Path("shop.db")), WriterLock(Path("shop.db"))
asyncio.run(locks[0].hold("worker", lambda: None))
held = locks[1].acquire()
if not os.fork():
    until_asked()
    os._exit(0)
os._exit(0)  # as a kill: nothing is released
"""

HELD = """
import gc, sys, threading

LOCKS = type(threading.Lock()), type(threading.RLock()), threading.Semaphore

def hold_all_locks(is_done):
    owners = [*sys.modules.values(), *gc.get_objects()]
    for owner in owners:
        name = owner.__name__ if type(owner) is type(sys) else type(owner).__module__
        if isinstance(name, str) and name.startswith("fairlead"):
            for value in list(getattr(owner, "__dict__", {}).values()):
                if isinstance(value, LOCKS):
                    while value.acquire(blocking=False) and isinstance(value, threading.Semaphore):
                        pass
    is_done.set()
    threading.Event().wait()

call()
is_done = threading.Event()
threading.Thread(target=hold_all_locks, args=(is_done,), daemon=True).start()
is_done.wait()
"""

CHILD_CALLS = """
import os, signal
if not os.fork():
    signal.alarm(30)  # a guard against a hang
    call()
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.wait()[1]) and 1)
"""

SUBMIT = """
import sys
import fairlead
app = fairlead.App(sys.argv[1])
app.migrate()

@app.task
async def pay(amount: int) -> None: ...

def call():
    assert pay.submit(amount=1).state()
    pay.submit_many([{"amount": 2}] * 60)
"""

WRITING = """
import os, threading

def hold_a_transaction():
    with app.store.database.transaction():
        has_begun.set()
        forks.wait()

has_begun, forks = threading.Event(), threading.Event()
os.register_at_fork(before=forks.set)
threading.Thread(target=hold_a_transaction, daemon=True).start()
has_begun.wait()
"""

WRITE = """
import sys
from fairlead.sharded import SyncShardedQueue
queue = SyncShardedQueue(sys.argv[1], "pay")

def call():
    queue.write({"amount": 1})
"""


@contextmanager
def forked(folder: Path, script: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a script whose child waits until the block ends."""
    with subprocess.Popen(
        [sys.executable, "-c", APP + script],
        cwd=folder,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        assert process.wait(60) == 0
        yield process
        process.stdin.close()
        assert process.stdout.read() == b""  # the child has ended


def number_of_tasks(folder: Path) -> int:
    """Open the file, count its tasks, and close it again as its last connection."""
    with closing(App(f"sqlite:///{folder}/shop.db")) as app:
        return len(app.management.find())


def test_submits_of_a_process_that_outlives_its_parent_are_kept(tmp_path: Path) -> None:
    with forked(tmp_path, DAEMON):
        assert number_of_tasks(tmp_path) == 1
    assert number_of_tasks(tmp_path) == 4


def test_a_forked_process_submits_asynchronously_as_its_parent_did(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", APP + ASYNCHRONOUS], cwd=tmp_path, env=environment(), check=True
    )
    assert number_of_tasks(tmp_path) == 3


@pytest.mark.parametrize(
    ("script", "store"),
    [
        (SUBMIT + HELD, "sqlite_url"),
        (SUBMIT + WRITING, "sqlite_url"),
        (SUBMIT + HELD, "postgres_url"),
        (WRITE + HELD, "redis_url"),
    ],
    ids=["sqlite", "sqlite transaction", "postgres", "redis"],
)
def test_a_child_submits_whatever_threads_of_its_parent_do(
    script: str, store: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(store)
    subprocess.run([sys.executable, "-c", script + CHILD_CALLS, url], env=environment(), check=True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_a_process_that_outlives_its_killed_worker_keeps_none_of_its_locks(
    tmp_path: Path,
) -> None:
    with forked(tmp_path, LOCKED):
        lock = WriterLock(tmp_path / "shop.db")
        held = lock.acquire(wait=False)
        lock.release(held)
        lock.close()
        dead = await FilePresence(tmp_path / "shop.db").released({"worker"})
    assert (held is not None, dead) == (True, {"worker"})
