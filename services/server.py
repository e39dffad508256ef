"""The part that all servers share: a folder, a port on the loopback address, and a process."""

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
    """Port, process and folder of a server that another process has started."""

    port: int
    pid: int
    folder: Path


class Server(ABC):
    """A server that `start()` or `with PostgresServer() as server:` starts.

    On Linux the server also ends when the thread that started it ends, even by kill -9; its folder
    is then left behind.
    """

    name: ClassVar[str]
    """Name in commands."""
    title: ClassVar[str]
    """Name in messages."""
    start_seconds: ClassVar[float] = 120
    parent_end_signal: ClassVar[signal.Signals] = signal.SIGTERM
    """Signal that the kernel sends to the server when the thread that started it ends."""
    stop_signals: ClassVar[dict[str, signal.Signals]] = {
        "smart": signal.SIGTERM,
        "fast": signal.SIGTERM,
        "immediate": signal.SIGKILL,
    }

    def __init__(self) -> None:
        """Start nothing yet."""
        self._folder: Path | None = None
        self._port = 0
        self._process: ServerProcess | ForeignProcess = ServerProcess(
            self.title, self.parent_end_signal
        )
        self._tag = ""
        self._names = 0

    @classmethod
    def attached(cls, running: Running, tag: str) -> Self:
        """Return a server that another process has started and will stop.

        `tag` differs by process, and is part of the names of everything created on the server.
        """
        server = cls()
        server._port, server._folder, server._tag = running.port, running.folder, tag
        server._process = ForeignProcess(running.pid)
        return server

    @property
    def running(self) -> Running:
        """Port, process and folder, for `attached` in another process."""
        assert self.pid is not None
        return Running(self._port, self.pid, self.folder)

    def fresh_name(self) -> str:
        """Return a name that was never used on the server."""
        self._names += 1
        return f"test_{self._tag}{self._names}"

    @property
    @abstractmethod
    def url(self) -> str:
        """URL for clients, with credentials."""

    @property
    def port(self) -> int:
        """Port on the loopback address; 0 before the first start."""
        return self._port

    @property
    def pid(self) -> int | None:
        """Process id of the server, or None while it does not run."""
        return self._process.pid

    @property
    def log(self) -> str:
        """Output of the server since its first start."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def folder(self) -> Path:
        """Folder of the server, from its start to `stop()`."""
        assert self._folder is not None
        return self._folder

    def start(self) -> None:
        """Start the server and return when it responds; after `crash()`, with the same port and
        data. Raise MissingProgram, or RuntimeError with the end of the log."""
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
        """Stop the server and remove its folder. `fast` and `smart` shut it down cleanly;
        `immediate` is like a crash."""
        self._end(mode)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def crash(self) -> None:
        """End the server at once and keep its folder for `start()`."""
        self._end("immediate")

    def restart(self, mode: str = "immediate") -> None:
        """Stop the server and start it with the same port and data; `immediate` is like a crash."""
        self._end(mode)
        self._launch()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # implemented by each server -------------------------------------------------------------------

    @abstractmethod
    def _prepare(self) -> None:
        """Fill the new folder."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command of the server."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Return whether the server responds."""

    def _make_folder(self) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"fairlead-{self.name}-"))

    def _as_user(self) -> dict[str, Any]:
        """Return arguments for `subprocess` with the user to run as."""
        return {}

    def _end(self, mode: str) -> None:
        self._process.end(self.stop_signals[mode])

    def _launch(self) -> None:
        self._process.start(
            self._command(), self.folder, self._is_ready, self.start_seconds, **self._as_user()
        )
