"""What a process and all below it use: processor time and memory. Linux; this process if no other
is named."""

import os
import pathlib
import threading
from collections.abc import Iterator

_TICKS = os.sysconf("SC_CLK_TCK")
_EVERY_SECONDS = 0.25


def cpu_seconds() -> float:
    """Processor time so far, that of processes which have ended included."""
    return sum(sum(map(int, fields[11:15])) for _, fields in _tree()) / _TICKS


def resident_mb(root: int | None = None) -> float:
    """Memory in use now."""
    pages = sum(int(fields[21]) for _, fields in _tree(root))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Peak:
    """The most memory that was ever in use while it is watched."""

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
    """Process id and /proc/<pid>/stat behind the name, of the root and all below."""
    found, children = {}, {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
            found[int(entry.name)] = fields
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    waiting = [os.getpid() if root is None else root]
    while waiting:
        pid = waiting.pop()
        if pid in found:  # else it has ended
            yield pid, found[pid]
            waiting += children.get(pid, [])
