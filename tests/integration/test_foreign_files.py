"""Foreign files in the folders beside a SQLite file, and damaged lines in its pipes, stop no worker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead import App
from fairlead.backends.sqlite.notifier import FifoNotifier
from fairlead.backends.sqlite.presence import FilePresence
from fairlead.ports import notification
from fairlead.ports.notification import Lane, Notification
from fairlead.testing import running
from tests import tiers
from tests.damage import damaged, fuzz_count


def _wrote(end: int, line: bytes) -> bool:
    try:
        return os.write(end, line) > 0
    except BlockingIOError:
        return False


NEWS = Notification([Lane("mail", 2, 7, 99)])


def a_folder(path: Path) -> None:
    path.mkdir()


def a_file(path: Path) -> None:
    path.write_text("foreign")


def a_link_to_a_file(path: Path) -> None:
    target = path.parent.parent / "target"
    target.write_text("kept")
    path.symlink_to(target)


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to(path.parent / "nothing")


def a_pipe_that_nobody_reads(path: Path) -> None:
    os.mkfifo(path)


FOREIGN = [a_folder, a_file, a_link_to_a_file, a_link_to_nothing, a_pipe_that_nobody_reads]


@pytest.mark.parametrize("make", FOREIGN)
async def test_a_foreign_file_among_the_pipes_stops_no_notification(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    database = tmp_path / "tasks.db"
    here, there = FifoNotifier(database), FifoNotifier(database)
    arrived: asyncio.Queue[Notification] = asyncio.Queue()
    await here.listen(arrived.put_nowait)
    folder = database.with_name("tasks.db-notifiers")
    for n in range(20):  # before and after the pipe in any order of the folder
        if n == 0 or make is not a_link_to_a_file:
            make(folder / f"{n}-foreign.notifier")
    for _ in range(3):
        there.notify(NEWS)
        async with asyncio.timeout(5):
            assert await arrived.get() == NEWS
    assert not (tmp_path / "target").exists() or (tmp_path / "target").read_text() == "kept"
    await here.close()
    await there.close()


@pytest.mark.parametrize("make", FOREIGN)
async def test_a_foreign_file_among_the_presences_stops_no_node(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    presence = FilePresence(tmp_path / "tasks.db")
    folder = tmp_path / "tasks.db-nodes"
    folder.mkdir()
    make(folder / "foreign")
    await presence.hold("here", lambda: None)
    assert await presence.released(["foreign", "here"]) <= {"foreign"}
    await presence.close()
    assert not (tmp_path / "target").exists() or (tmp_path / "target").read_text() == "kept"


@pytest.mark.fuzz
async def test_a_worker_reads_damaged_lines_in_its_pipe_and_runs_the_next_task(
    tmp_path: Path,
) -> None:
    app = App(f"sqlite:///{tmp_path / 'tasks.db'}")
    ran: asyncio.Queue[int] = asyncio.Queue()

    async def run(number: int) -> None:
        ran.put_nowait(number)

    task = app.task(queue="mail", name="run")(run)
    app.migrate()
    good = [notification.encode(each) for each in (NEWS, Notification(), Notification(due=5))]
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: failures.append(about))
    async with running(app):
        (pipe,) = (tmp_path / "tasks.db-notifiers").glob("*.notifier")
        end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        for n, record in enumerate(damaged(good, fuzz_count(300), tiers.seed())):
            line = record.replace(b"\n", b"")[:3000] + b"\n"
            while not _wrote(end, line):
                await asyncio.sleep(0)  # the worker reads
            if n % 10 == 0:
                await asyncio.sleep(0)
        os.close(end)
        await task.submit_async(number=7)
        async with asyncio.timeout(20):
            assert await ran.get() == 7
    assert not failures
    app.close()
