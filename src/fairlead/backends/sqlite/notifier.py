"""The notifier of one SQLite file: a named pipe for each listener, in a folder beside the file.

A ring is one write to each pipe: some microseconds, no lock, no server, and a listener that waits
costs nothing. Whoever rings finds the pipes by looking into the folder again whenever the folder
has changed. A pipe whose listener was killed has no reader; the next one to ring or to listen
removes it.

Writers that ring nothing (a submit without its trigger, plain SQL) are noticed through SQLite's
data_version, which every commit of another connection moves. A node's own commits move it too, so
the rule has a second look: only when new work came in (the counter of ready tasks or the highest
row number grew) does the listener look everywhere, at once when no ring was heard in the same half
second, else in the first half second without one, at the latest after five seconds.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import sqlite3
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from fairlead.backends.memory.notifier import (
    Listener,
    OnNotification,
    WaitingThreads,
    drop_when_forked,
)
from fairlead.ports.notification import LOOK_EVERYWHERE, Notification, decode, pieces

log = logging.getLogger("fairlead.notifier")

# A write up to this size is never mixed with another's (POSIX); one byte is the line's end.
MOST_BYTES = min(4000, getattr(select, "PIPE_BUF", 512) - 1)

WATCH_EVERY = 0.5
"""Seconds between two looks at data_version while pipes do the work."""
WATCH_EVERY_WITHOUT_PIPES = 0.02
"""Seconds between two looks where there can be no pipes."""
_PATIENCE = 10
"""Half seconds that rings may keep coming before new work that none of them may have announced is
looked for."""

_SUFFIX = ".notifier"
_UNFINISHED = ".new"
_UNFINISHED_FOR = 60  # seconds after which a pipe that was never made whole is litter
_SMALLEST_PIPE = 16384  # bytes, where the system does not tell
_FOLDER_CLOCK_NS = (
    50_000_000  # two changes of a folder within one tick of the file system's clock look like one
)


class FifoNotifier:
    """See `fairlead.ports.trigger_channel.Notifier`."""

    def __init__(self, path: str | Path) -> None:
        self._database = Path(path).resolve()  # so that all who share the file find the same folder
        self._folder = self._database.with_name(self._database.name + "-notifiers")
        self._ringer = _Ringer(self._folder)
        self._waiting = WaitingThreads(self._open_listener)
        self._listener: _Listener | None = None

    def notify(self, notification: Notification) -> None:
        self._ringer.notify(notification)

    async def listen(self, on_notification: OnNotification) -> None:
        if self._listener is not None:
            raise RuntimeError("this notifier listens already; close it first, or make another")
        self._ringer.remove_stale()
        self._listener = _Listener(
            self._open_pipe(), _Watch(self._database), self._open_pipe, on_notification
        )

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._ringer.close()
        self._waiting.close()

    def wait_finished(self, task_id: str, timeout: float) -> None:
        self._waiting.wait(task_id, timeout)

    def _open_pipe(self) -> _Pipe | None:
        try:
            return _Pipe(self._folder)
        except (OSError, AttributeError, NotImplementedError) as error:
            log.warning(
                "no named pipes here: looking at the database every 20 ms instead",
                extra={"folder": str(self._folder), "error": str(error)},
            )
            return None

    def _open_listener(self) -> Listener:
        pipe = self._open_pipe()
        return _WatchListener(_Watch(self._database)) if pipe is None else pipe


class _Ringer:
    """The writing ends of all pipes in the folder, from any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._trouble: int | None = None
        self._ends: dict[str, int] = {}
        self.after_fork()
        drop_when_forked(self)

    def after_fork(self) -> None:
        for end in self._ends.values():
            with suppress(OSError):
                os.close(end)
        self._lock = threading.Lock()
        self._ends = {}
        self._seen: int | None = None

    def notify(self, notification: Notification) -> None:
        lines = [piece + b"\n" for piece in pieces(notification, MOST_BYTES)]
        try:
            with self._lock:
                self._find()
                for path, end in list(self._ends.items()):
                    self._write(path, end, lines)
            self._trouble = None
        except FileNotFoundError:
            pass  # no folder: nobody ever listened
        except OSError as error:
            # Never raised: the sweeps make up for a lost wake, the caller's transaction has already
            # committed.
            if error.errno != self._trouble:
                self._trouble = error.errno
                log.warning("cannot ring", extra={"folder": self._folder, "error": str(error)})

    def remove_stale(self) -> None:
        """Remove pipes without a reader, and what was never made whole."""
        with self._lock, suppress(OSError):
            self._seen = None
            self._find()
            for entry in os.scandir(self._folder):
                if (
                    entry.name.endswith(_UNFINISHED)
                    and time.time() - entry.stat().st_mtime > _UNFINISHED_FOR
                ):
                    os.unlink(entry.path)

    def close(self) -> None:
        """Close all ends; a later ring opens them again."""
        with self._lock:
            for path in list(self._ends):
                self._drop(path)
            self._seen = None

    def _find(self) -> None:
        """Bring the ends up to date with the folder."""
        changed = os.stat(self._folder).st_mtime_ns
        if changed == self._seen:
            return
        # What changed only just now may change again without its time moving: then look again at
        # the next ring.
        self._seen = changed if time.time_ns() - changed > _FOLDER_CLOCK_NS else None
        with os.scandir(self._folder) as entries:
            paths = {entry.path for entry in entries if entry.name.endswith(_SUFFIX)}
        for path in self._ends.keys() - paths:
            self._drop(path)
        for path in paths - self._ends.keys():
            try:
                self._ends[path] = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                with suppress(FileNotFoundError):  # no reader: its listener was killed
                    os.unlink(path)

    def _write(self, path: str, end: int, lines: Sequence[bytes]) -> None:
        try:
            for line in lines:
                os.write(end, line)
        except BlockingIOError:
            pass  # full: its listener will see that and look everywhere
        except BrokenPipeError:
            self._drop(path)
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _drop(self, path: str) -> None:
        with suppress(OSError):
            os.close(self._ends.pop(path))


class _Pipe:
    """A listener's own pipe: made, read, removed. Also an ear for threads."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.path = folder / f"{os.getpid()}-{uuid.uuid4().hex}{_SUFFIX}"
        unfinished = self.path.with_suffix(_UNFINISHED)
        os.mkfifo(unfinished, 0o600)
        # Reading and writing: without a writer the pipe would be at its end, and stay readable, all
        # the time.
        self.end = os.open(unfinished, os.O_RDWR | os.O_NONBLOCK)
        # Only now under its name: whoever rings takes a pipe without a reader for a dead one.
        os.rename(unfinished, self.path)
        self._capacity = _capacity(self.end)
        self._rest = b""
        self._poll = select.poll()
        self._poll.register(self.end, select.POLLIN)
        self._remove = weakref.finalize(
            self, _remove, self.path, os.getpid()
        )  # also when the process ends
        drop_when_forked(self)

    def after_fork(self) -> None:
        # While a child held this end, the pipe of its dead parent would seem alive.
        if self.end >= 0:
            os.close(self.end)
            self.end = -1

    def read(self) -> list[Notification]:
        """All wakes that lie in the pipe."""
        try:
            data = os.read(self.end, self._capacity)
        except BlockingIOError:
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        notifications = [decode(line) for line in lines]
        # The system fills a pipe page by page and a message never spans two, so it can be full when
        # half of its bytes are there. Then somebody may have found no room, and what he had to say
        # is not here.
        if len(data) >= self._capacity // 2 or len(self._rest) > MOST_BYTES:
            self._rest = b""
            notifications.append(LOOK_EVERYWHERE)
        return notifications

    def hear(self, timeout: float) -> Sequence[Notification]:
        return self.read() if self._poll.poll(timeout * 1000) else ()

    def close(self) -> None:
        self._remove()
        self.after_fork()


class _Watch:
    """Notices commits of other connections, and whether they brought new work."""

    _NEW_WORK = (
        "SELECT (SELECT value FROM fairlead_sequence), (SELECT max(seq) FROM fairlead_tasks)"
    )

    def __init__(self, database: Path) -> None:
        self._uri = database.as_uri() + "?mode=rw"  # never makes the file
        self._connection: sqlite3.Connection | None = None
        self._version = 0
        self._counter, self._highest = 0, 0
        self.look()

    def look(self) -> tuple[bool, bool]:
        """Whether anything was committed since the last look, and whether that brought new work."""
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(
                    self._uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False
                )
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
            if version == self._version:
                return False, False
            counter, highest = self._connection.execute(self._NEW_WORK).fetchone()
        except sqlite3.OperationalError:
            return (
                False,
                False,
            )  # no file yet, no tables yet, or locked for a moment: the next look will see it
        has_new_work = counter != self._counter or (highest or 0) > self._highest
        self._version, self._counter, self._highest = version, counter, highest or 0
        return True, has_new_work

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _WatchListener:
    """The ear of threads where there are no pipes."""

    def __init__(self, watch: _Watch) -> None:
        self._watch = watch
        self._never = threading.Event()

    def hear(self, timeout: float) -> Sequence[Notification]:
        for _ in range(max(1, round(timeout / WATCH_EVERY_WITHOUT_PIPES))):
            self._never.wait(WATCH_EVERY_WITHOUT_PIPES)
            if self._watch.look()[0]:
                return (LOOK_EVERYWHERE,)
        return ()

    def close(self) -> None:
        self._watch.close()


class _Listener:
    """One listener in an event loop: its pipe, if there can be one, and its watch over the
    database."""

    def __init__(
        self,
        pipe: _Pipe | None,
        watch: _Watch,
        open_pipe: Callable[[], _Pipe | None],
        on_notification: OnNotification,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._watch = watch
        self._open_pipe = open_pipe
        self._on_notification = on_notification
        self._was_rung = False
        self._unexplained = 0
        self._restless = 0
        self._set_pipe(pipe)
        self._timer = self._loop.call_later(self._every, self._look)

    def _set_pipe(self, pipe: _Pipe | None) -> None:
        self._pipe = pipe
        self._every = WATCH_EVERY_WITHOUT_PIPES if pipe is None else WATCH_EVERY
        if pipe is not None:
            self._loop.add_reader(pipe.end, self._hear)

    def close(self) -> None:
        self._timer.cancel()
        self._close_pipe()
        self._watch.close()

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            if self._pipe.end >= 0:
                self._loop.remove_reader(self._pipe.end)
            self._pipe.close()
            self._pipe = None

    def _hear(self) -> None:
        if self._pipe is None:
            return
        for notification in self._pipe.read():
            self._was_rung = True
            self._on_notification(notification)

    def _look(self) -> None:
        self._timer = self._loop.call_later(self._every, self._look)
        if self._pipe is None:
            self._look_without_pipe()
            return
        if not self._pipe.path.exists():
            log.warning(
                "the notifier's pipe was removed; making it anew",
                extra={"pipe": str(self._pipe.path)},
            )
            self._close_pipe()
            self._set_pipe(self._open_pipe())
            self._on_notification(LOOK_EVERYWHERE)
            return
        was_rung, self._was_rung = self._was_rung, False
        if self._watch.look()[1] or self._unexplained:
            self._unexplained += 1
        if self._unexplained and (not was_rung or self._unexplained > _PATIENCE):
            self._unexplained = 0
            self._on_notification(LOOK_EVERYWHERE)

    def _look_without_pipe(self) -> None:
        """New work at once; any other change (a pause, a finished task, or only our own commits)
        twice a second."""
        has_moved, has_new_work = self._watch.look()
        if has_moved or self._restless:
            self._restless += 1
        if has_new_work or self._restless * WATCH_EVERY_WITHOUT_PIPES > WATCH_EVERY:
            self._restless = 0
            self._on_notification(LOOK_EVERYWHERE)


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child
        with suppress(OSError):
            path.unlink()


def _capacity(end: int) -> int:
    """How many bytes a pipe can hold."""
    import fcntl

    try:
        return fcntl.fcntl(end, fcntl.F_GETPIPE_SZ)
    except (AttributeError, OSError):
        return _SMALLEST_PIPE
