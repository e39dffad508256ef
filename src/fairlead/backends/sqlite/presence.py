"""The presence of nodes that share a SQLite file: each locks a file of its own beside it.

The kernel releases the lock when the process ends, however it ends (flock(2)). Containers that
share the file see each other's locks, but not each other's process ids.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from fairlead.backends.sqlite.file_modes import make_folder, open_beside
from fairlead.forks import drop_when_forked

log = logging.getLogger("fairlead.presence")

_KEPT_SECONDS = 3600
"""Seconds for which the file of a dead node stays after its mark, as evidence of its death."""

_MARK_OF_DEATH = b"dead"

try:
    import fcntl
except ImportError:  # without such locks, only missing heartbeats and leases show a death
    fcntl = None  # type: ignore[assignment]


class FilePresence:
    """A `fairlead.ports.presence.Presence` for the processes that share a SQLite file."""

    confirm_seconds = 0.0
    check_seconds = 0.25

    def __init__(self, database: Path) -> None:
        path = database.resolve()  # the same folder for every process
        self._database = path
        self._folder = path.with_name(path.name + "-nodes")
        self._held: dict[str, int] = {}
        """File descriptors by node."""
        drop_when_forked(self)

    def after_fork(self) -> None:
        # Otherwise the nodes of a dead parent would look alive while this process lives.
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()

    async def hold(self, node: str, on_changed: Callable[[], None]) -> None:
        if fcntl is None or node in self._held:
            return
        try:
            self._held[node] = self._lock(self._file(node))
            on_changed()
            self._remove_old()
        except OSError as error:
            log.warning(
                "cannot lock a file: if this worker dies, others see only its missing heartbeats",
                extra={"folder": str(self._folder), "error": str(error)},
            )

    async def released(self, nodes: Collection[str]) -> set[str]:
        return {node for node in nodes if _is_released(self._file(node))}

    async def close(self) -> None:
        for node, descriptor in self._held.items():
            with suppress(OSError):
                self._file(node).unlink()  # first, so that nobody sees it released
            os.close(descriptor)
        self._held.clear()
        with suppress(OSError):
            self._folder.rmdir()  # the last node removes the folder

    def _file(self, node: str) -> Path:
        return self._folder / quote(node, safe="")

    def _lock(self, file: Path) -> int:
        while True:
            make_folder(self._database, self._folder)
            try:
                descriptor = open_beside(self._database, str(file))
            except FileNotFoundError:
                continue  # the last other node has just removed the folder
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.stat(file).st_ino == os.fstat(descriptor).st_ino:
                    return descriptor
            os.close(descriptor)  # another process has just removed the file

    def _remove_old(self) -> None:
        """Mark the files of dead nodes, and remove the files that were marked long ago. The time of
        change of an unmarked file is the start of its node, not the node's death."""
        for file in self._folder.iterdir():
            with suppress(OSError):
                about = file.lstat()
                if not stat.S_ISREG(about.st_mode) or not _is_released(file):
                    continue
                if not about.st_size:
                    file.write_bytes(_MARK_OF_DEATH)  # sets the time of change
                elif time.time() - about.st_mtime > _KEPT_SECONDS:
                    file.unlink()


def _is_released(file: Path) -> bool:
    """Return whether the file exists and nobody has its lock."""
    if fcntl is None:
        return False
    try:
        # No wait for the writer of a pipe, which only another program puts there.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)
