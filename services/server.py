"""What all servers of ours share: a folder and a port of their own, and one process in it."""

from __future__ import annotations

import shutil
import signal
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from services.process import ForeignProcess, ServerProcess, free_port


@dataclass(frozen=True)
class Running:
    """Where a server runs that another process has started."""

    port: int
    pid: int
    folder: Path


class Server(ABC):
    """Started by `start()` or `with PostgresServer() as server:`.

    On Linux it also ends when the thread that started it does, a kill -9 included; its folder is
    then left behind.
    """

    name: ClassVar[str]
    """As one writes it in a command."""
    title: ClassVar[str]
    """As people call it."""
    start_seconds: ClassVar[float] = 120
    at_our_end: ClassVar[signal.Signals] = signal.SIGTERM
    stop_signals: ClassVar[dict[str, signal.Signals]] = {
        "smart": signal.SIGTERM,
        "fast": signal.SIGTERM,
        "immediate": signal.SIGKILL,
    }

    def __init__(self) -> None:
        """Starts nothing."""
        self._folder: Path | None = None
        self._port = 0
        self._process: ServerProcess | ForeignProcess = ServerProcess(self.title, self.at_our_end)
        self._tag = ""
        self._names = 0

    @classmethod
    def attached(cls, running: Running, tag: str) -> Self:
        """Return a server that another process has started and will stop.

        `tag` is in the names of all that is made on the server, and differs by process.
        """
        server = cls()
        server._port, server._folder, server._tag = running.port, running.folder, tag
        server._process = ForeignProcess(running.pid)
        return server

    @property
    def running(self) -> Running:
        """Where it runs, for `attached` in another process."""
        assert self.pid is not None
        return Running(self._port, self.pid, self.folder)

    def fresh_name(self) -> str:
        """Return a name that nothing on the server has had."""
        self._names += 1
        return f"test_{self._tag}{self._names}"

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients reach it, credentials included."""

    @property
    def port(self) -> int:
        """Of the loopback; 0 before the first start."""
        return self._port

    @property
    def pid(self) -> int | None:
        """The process id of the server, None while it does not run."""
        return self._process.pid

    @property
    def log(self) -> str:
        """What the server has said since it was first started."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def folder(self) -> Path:
        """Where it keeps everything, from its start to `stop()`."""
        assert self._folder is not None
        return self._folder

    def start(self) -> None:
        """Return when it answers; after `crash()` with the same port and data. Raises
        MissingProgram, or RuntimeError with the end of its log."""
        if self._process.was_started:
            raise RuntimeError("this server is running; use restart")
        try:
            if self._folder is None:
                self._port = free_port()
                self._folder = self._make_folder()
                self._prepare()
            self._launch()
        except BaseException:
            self.stop("immediate")
            raise

    def stop(self, mode: str = "fast") -> None:
        """`fast` (and `smart`): it ends in order; `immediate`: as if it had crashed. Its folder is
        removed."""
        self._end(mode)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def crash(self) -> None:
        """End it at once, with its folder kept for `start()`."""
        self._end("immediate")

    def restart(self, mode: str = "immediate") -> None:
        """Stop and start with the same port and data; `immediate` is as if it had crashed."""
        self._end(mode)
        self._launch()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # what each server says of itself --------------------------------------------------------------

    @abstractmethod
    def _prepare(self) -> None:
        """Fill the new folder."""

    @abstractmethod
    def _command(self) -> list[str]:
        """What to run."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """It answers."""

    def _make_folder(self) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"fairlead-{self.name}-"))

    def _as_user(self) -> dict[str, Any]:
        """Arguments for `subprocess`: whom to run as."""
        return {}

    def _end(self, mode: str) -> None:
        self._process.end(self.stop_signals[mode])

    def _launch(self) -> None:
        self._process.start(
            self._command(), self.folder, self._is_ready, self.start_seconds, **self._as_user()
        )
