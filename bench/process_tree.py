"""Processor time and memory of a process and all its descendants, on Linux. The default root is
this process."""

import os
import pathlib
import threading
from collections.abc import Iterator

_TICKS = os.sysconf("SC_CLK_TCK")
_EVERY_SECONDS = 0.25


def cpu_seconds() -> float:
    """Return the processor time so far, including processes that have ended."""
    return sum(sum(map(int, fields[11:15])) for _, fields in _tree()) / _TICKS


def resident_mb(root: int | None = None) -> float:
    """Return the memory in use now, in MB."""
    pages = sum(int(fields[21]) for _, fields in _tree(root))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Peak:
    """The peak memory in use while it is watched."""

    def __init__(self, root: int | None = None) -> None:
        self.mb = 0.0
        self._root = root
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Peak":
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_SECONDS):
            self.mb = max(self.mb, resident_mb(self._root))


def _tree(root: int | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield the process id and /proc/<pid>/stat after the name, for the root and its
    descendants."""
    found, children = {}, {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # the process has ended meanwhile
            found[int(entry.name)] = fields
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    waiting = [os.getpid() if root is None else root]
    while waiting:
        pid = waiting.pop()
        if pid in found:  # otherwise the process has ended
            yield pid, found[pid]
            waiting += children.get(pid, [])
