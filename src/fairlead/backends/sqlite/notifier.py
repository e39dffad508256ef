"""The notifier of one SQLite file: a named pipe for each listener, in a folder beside the file.

To notify is one write to each pipe: some microseconds, no lock, no server, and a waiting listener
costs nothing. A message to one node is written to the pipe of that node only, whose name contains
a digest of the node's name. A sender reads the folder again whenever the folder has changed. A pipe
whose listener was killed has no reader; the next sender or listener removes the pipe.

Some commits come without a notification, such as a submit in the caller's transaction without a
later `handle.trigger()`, or plain SQL. Every half second a listener checks SQLite's data_version,
which every commit of another connection changes. A node's own commits change data_version too, so
the listener also checks whether there is new work: whether the counter of ready tasks or the
highest row number has grown. New work in a half second without notifications makes the listener
look everywhere at once. New work beside notifications was probably announced by them, so the
listener looks everywhere in the next half second without notifications, at the latest after five
seconds.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import select
import sqlite3
import stat
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from fairlead.backends.memory.notifier import (
    FinishWatchers,
    OnFinished,
    OnNotification,
    PollingListener,
    ThreadListener,
)
from fairlead.backends.sqlite.file_modes import make_folder, set_permissions
from fairlead.forks import drop_when_forked
from fairlead.model.peer import PeerMessage, recipient_of
from fairlead.ports.notification import ANY_CHANGE, Notification, decode, pieces

log = logging.getLogger("fairlead.notifier")

# POSIX never mixes a write of up to PIPE_BUF bytes with another one; one byte ends the line.
MOST_BYTES = min(4000, getattr(select, "PIPE_BUF", 512) - 1)

WATCH_EVERY = 0.5
"""Seconds between two checks of data_version while there are pipes."""
WATCH_EVERY_WITHOUT_PIPES = 0.02
"""Seconds between two checks of data_version where pipes are not possible."""
_MOST_CHECKS = 10
"""Checks after new work, each half a second, after which the listener looks everywhere even if
notifications never pause."""

_SUFFIX = ".notifier"
_ANY_NODE = "@"
"""Character in the names of pipes of nodes; pipes of other listeners do not have it."""
_UNFINISHED = ".new"
_UNFINISHED_FOR = 60  # seconds after which an unfinished pipe is removed
_SMALLEST_PIPE = 16384  # bytes, if the system does not report the size
_PIPE = 1 << 18  # bytes; one round of grants has up to 128 KiB
# Nanoseconds; two changes of a folder within one tick of the file system's clock look like one.
_FOLDER_CLOCK_NS = 50_000_000


class FifoNotifier:
    """A `fairlead.ports.notifier.Notifier` for the processes that share a SQLite file."""

    def __init__(self, path: str | Path) -> None:
        self._database = Path(path).resolve()  # the same folder for every process
        self._folder = self._database.with_name(self._database.name + "-notifiers")
        self._writers = _PipeWriters(self._folder)
        self._finishes = FinishWatchers(self._open_listener)
        self._listener: _LoopListener | None = None

    def notify(self, notification: Notification) -> None:
        self._writers.notify(notification)

    def send(self, message: PeerMessage) -> None:
        self._writers.send(message)

    async def listen(self, on_notification: OnNotification, node: str | None = None) -> None:
        if self._listener is not None:
            raise RuntimeError("this notifier listens already; close it first, or make another")
        self._writers.remove_stale()
        self._listener = _LoopListener(
            partial(self._open_pipe, node), _CommitWatch(self._database), on_notification
        )

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._writers.close()
        self._finishes.close()

    def watch_finished(self, on_finished: OnFinished) -> Callable[[], None]:
        return self._finishes.watch(on_finished)

    def _open_pipe(self, node: str | None = None) -> _Pipe | None:
        try:
            return _Pipe(self._database, self._folder, node)
        except (OSError, AttributeError, NotImplementedError) as error:
            log.warning(
                "cannot create a named pipe: checking the database every 20 ms instead",
                extra={"folder": str(self._folder), "error": str(error)},
            )
            return None

    def _open_listener(self) -> ThreadListener:
        pipe = self._open_pipe()
        return PollingListener() if pipe is None else pipe


class _PipeWriters:
    """The writing ends of all pipes in the folder, usable from any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._last_errno: int | None = None
        self._ends: dict[str, int] = {}
        self.after_fork()
        drop_when_forked(self)

    def after_fork(self) -> None:
        for end in self._ends.values():
            with suppress(OSError):
                os.close(end)
        self._lock = threading.Lock()
        self._ends = {}
        self._folder_changed_at: int | None = None
        self._foreign: set[str] = set()
        """Files of the folder that are no pipes, or that this process may not write."""

    def notify(self, notification: Notification) -> None:
        self._notify(notification, "")

    def send(self, message: PeerMessage) -> None:
        recipient = recipient_of(message)
        address = _ANY_NODE if recipient is None else _address(recipient)
        self._notify(Notification(peer=message), address)

    def _notify(self, notification: Notification, address: str) -> None:
        """Write to the pipes whose names contain `address`."""
        lines = [piece + b"\n" for piece in pieces(notification, MOST_BYTES)]
        try:
            with self._lock:
                self._refresh()
                for path, end in list(self._ends.items()):
                    if address in path:
                        self._write(path, end, lines)
            self._last_errno = None
        except FileNotFoundError:
            pass  # no folder: nothing has ever listened
        except OSError as error:
            # Never raised: the caller's transaction has committed, and sweeps make up for a lost
            # notification.
            if error.errno != self._last_errno:
                self._last_errno = error.errno
                log.warning("cannot notify", extra={"folder": self._folder, "error": str(error)})

    def remove_stale(self) -> None:
        """Remove pipes without a reader, and unfinished pipes."""
        with self._lock, suppress(OSError):
            self._folder_changed_at = None
            self._refresh()
            for entry in os.scandir(self._folder):
                if (
                    entry.name.endswith(_UNFINISHED)
                    and time.time() - entry.stat().st_mtime > _UNFINISHED_FOR
                ):
                    os.unlink(entry.path)

    def close(self) -> None:
        """Close all ends; a later `notify` opens them again."""
        with self._lock:
            for path in list(self._ends):
                self._drop(path)
            self._folder_changed_at = None

    def _refresh(self) -> None:
        """Open new pipes of the folder and close removed ones."""
        changed = os.stat(self._folder).st_mtime_ns
        if changed == self._folder_changed_at:
            return
        # A folder that has just changed may change again without a new time stamp, so read it again
        # at the next notification.
        self._folder_changed_at = changed if time.time_ns() - changed > _FOLDER_CLOCK_NS else None
        with os.scandir(self._folder) as entries:
            paths = {entry.path for entry in entries if entry.name.endswith(_SUFFIX)}
        for path in self._ends.keys() - paths:
            self._drop(path)
        for path in paths - self._ends.keys():
            if path in self._foreign:
                continue
            try:
                self._ends[path] = _open_writing(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno == errno.ENXIO:
                    with suppress(OSError):  # no reader: its listener was killed
                        os.unlink(path)
                    continue
                # The other pipes get their notifications all the same.
                self._foreign.add(path)
                log.warning("cannot notify", extra={"path": path, "error": str(error)})
        self._foreign &= paths

    def _write(self, path: str, end: int, lines: Sequence[bytes]) -> None:
        try:
            for line in lines:
                os.write(end, line)
        except BlockingIOError:
            pass  # full: its listener notices that, and looks everywhere
        except BrokenPipeError:
            self._drop(path)
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _drop(self, path: str) -> None:
        with suppress(OSError):
            os.close(self._ends.pop(path))


def _open_writing(path: str) -> int:
    """Open the writing end of a pipe. Raise OSError for any other file."""
    end = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    if stat.S_ISFIFO(os.fstat(end).st_mode):
        return end
    os.close(end)
    raise OSError(errno.EINVAL, "it is no pipe")


class _Pipe:
    """A listener's own pipe, from creation to removal; also a `ThreadListener`."""

    def __init__(self, database: Path, folder: Path, node: str | None) -> None:
        make_folder(database, folder)
        address = "" if node is None else _address(node)
        self.path = folder / f"{os.getpid()}-{uuid.uuid4().hex}{address}{_SUFFIX}"
        unfinished = self.path.with_suffix(_UNFINISHED)
        os.mkfifo(unfinished, 0o600)
        set_permissions(database, unfinished)
        # Opened for writing too, because a pipe without a writer is always readable.
        self.end = os.open(unfinished, os.O_RDWR | os.O_NONBLOCK)
        # Renamed when it has a reader: a sender removes a pipe without one.
        os.rename(unfinished, self.path)
        self._capacity = _capacity(self.end)
        self._rest = b""
        self._poll = select.poll()
        self._poll.register(self.end, select.POLLIN)
        # The finalizer also runs when the process ends.
        self._remove = weakref.finalize(self, _remove, self.path, os.getpid())
        drop_when_forked(self)

    def after_fork(self) -> None:
        # Otherwise the child would hold this end, and the pipe of a dead parent would look alive.
        if self.end >= 0:
            os.close(self.end)
            self.end = -1

    def read(self) -> list[Notification]:
        """Return all notifications in the pipe."""
        try:
            data = os.read(self.end, self._capacity)
        except BlockingIOError:
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        notifications = [decode(line) for line in lines]
        # The system fills a pipe page by page, and a message never spans two pages, so a pipe with
        # half of its bytes can be full. A sender may then have found no room for its notification.
        if len(data) >= self._capacity // 2 or len(self._rest) > MOST_BYTES:
            self._rest = b""
            notifications.append(ANY_CHANGE)
        return notifications

    def receive(self, timeout: float) -> Sequence[Notification]:
        return self.read() if self._poll.poll(timeout * 1000) else ()

    def close(self) -> None:
        self._remove()
        self.after_fork()


class _CommitWatch:
    """A check for commits of other connections, and for new work in them."""

    _NEW_WORK = (
        "SELECT (SELECT value FROM fairlead_sequence), (SELECT max(seq) FROM fairlead_tasks)"
    )

    def __init__(self, database: Path) -> None:
        self._uri = database.as_uri() + "?mode=rw"  # never creates the file
        self._connection: sqlite3.Connection | None = None
        self._version = 0
        self._counter, self._highest = 0, 0
        self.check()

    def check(self) -> tuple[bool, bool]:
        """Return whether anything was committed since the last check, and whether there is new work
        in it."""
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
            # No file yet, no tables yet, or locked for a moment: the next check notices the change.
            return False, False
        has_new_work = counter != self._counter or (highest or 0) > self._highest
        self._version, self._counter, self._highest = version, counter, highest or 0
        return True, has_new_work

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _LoopListener:
    """A listener in an event loop, with its pipe, if possible, and its watch over the database."""

    def __init__(
        self,
        open_pipe: Callable[[], _Pipe | None],
        watch: _CommitWatch,
        on_notification: OnNotification,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._watch = watch
        self._open_pipe = open_pipe
        self._on_notification = on_notification
        self._was_notified = False
        self._checks_since_work = 0
        self._checks_since_change = 0
        self._set_pipe(open_pipe())
        self._timer = self._loop.call_later(self._every, self._check)

    def _set_pipe(self, pipe: _Pipe | None) -> None:
        self._pipe = pipe
        self._every = WATCH_EVERY_WITHOUT_PIPES if pipe is None else WATCH_EVERY
        if pipe is not None:
            self._loop.add_reader(pipe.end, self._on_readable)

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

    def _on_readable(self) -> None:
        if self._pipe is None:
            return
        for notification in self._pipe.read():
            self._was_notified = True
            self._on_notification(notification)

    def _check(self) -> None:
        self._timer = self._loop.call_later(self._every, self._check)
        if self._pipe is None:
            self._check_without_pipe()
            return
        if not self._pipe.path.exists():
            log.warning(
                "the notifier's pipe was removed: creating it again",
                extra={"pipe": str(self._pipe.path)},
            )
            self._close_pipe()
            self._set_pipe(self._open_pipe())
            self._on_notification(ANY_CHANGE)
            return
        was_notified, self._was_notified = self._was_notified, False
        if self._watch.check()[1] or self._checks_since_work:
            self._checks_since_work += 1
        if self._checks_since_work and (not was_notified or self._checks_since_work > _MOST_CHECKS):
            self._checks_since_work = 0
            self._on_notification(ANY_CHANGE)

    def _check_without_pipe(self) -> None:
        """Announce new work at once; announce other changes (a pause, a finished task, or only our
        own commits) twice a second."""
        has_moved, has_new_work = self._watch.check()
        if has_moved or self._checks_since_change:
            self._checks_since_change += 1
        if has_new_work or self._checks_since_change * WATCH_EVERY_WITHOUT_PIPES > WATCH_EVERY:
            self._checks_since_change = 0
            self._on_notification(ANY_CHANGE)


def _address(node: str) -> str:
    """Return the part of a pipe's name that stands for a node, whose own name may be any text."""
    return _ANY_NODE + hashlib.sha256(node.encode()).hexdigest()[:32]


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child
        with suppress(OSError):
            path.unlink()


def _capacity(end: int) -> int:
    """Let a pipe hold _PIPE bytes, if the system allows it; return how many it can hold."""
    import fcntl

    with suppress(AttributeError, OSError):
        fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, _PIPE)
    with suppress(AttributeError, OSError):
        return fcntl.fcntl(end, fcntl.F_GETPIPE_SZ)
    return _SMALLEST_PIPE
