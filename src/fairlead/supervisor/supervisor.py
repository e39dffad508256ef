"""The supervisor: carries out what the fleet decides, in one thread, with one selector."""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from fairlead.supervisor.fleet import Action, Drain, End, Fleet, Kill, Log, Start
from fairlead.supervisor.health import LIVE, LIVE_SECONDS, READY, Health, health_response
from fairlead.supervisor.http import Response, Routes, StatusServer
from fairlead.supervisor.link import SupervisorEnd
from fairlead.supervisor.metrics import Total

log = logging.getLogger("fairlead.supervisor")

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)

Launch = Callable[[int], tuple[subprocess.Popen[bytes], SupervisorEnd]]
"""Start a process for a slot, or raise OSError."""


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    link: SupervisorEnd
    slot: int
    health: Health | None = None
    reported_at: float = 0.0
    error: str | None = None
    has_ended_link: bool = False


class Supervisor:
    """Runs N workers until they are stopped."""

    def __init__(self, workers: int, fleet: Fleet, launch: Launch) -> None:
        self.total = Total()
        """Metrics of all workers."""
        self._slots = range(1, workers + 1)
        self._fleet = fleet
        self._launch = launch
        self._workers: dict[int, _Worker] = {}
        self._selector = selectors.DefaultSelector()
        self._waker, self._signals = socket.socketpair()
        self._lock = threading.Lock()
        """Held while the workers change, or are shown by the status server in its thread."""
        self._code: int | None = None
        self._had_terminal = _has_terminal()
        self.last_error: str | None = None
        """Message of the last error with which a worker ended."""

    def serve_status(self, metrics: Routes, listen: Callable[[Routes], StatusServer]) -> int:
        """Serve health and metrics on the address on which `listen` listens; return the port. Raise
        ConfigurationError."""
        server = listen(self._routes(metrics))
        server.start()
        return server.port

    def run(self) -> int:
        """Run the workers; return the exit code."""
        for end in (self._waker, self._signals):
            end.setblocking(False)
        self._selector.register(self._signals, selectors.EVENT_READ, self._on_signals)
        before = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
        wakeup = signal.set_wakeup_fd(self._waker.fileno())
        try:
            self._do(self._fleet.start(time.monotonic()))
            while self._code is None:
                self._wait()
            return self._code
        finally:
            self._end()
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _wait(self) -> None:
        due, now = self._fleet.next_due, time.monotonic()
        ready = self._selector.select(None if due is None else max(0.0, due - now))
        with self._lock:
            for key, _ in ready:
                key.data()
            if self._code is None:
                self._do(self._fleet.on_time(time.monotonic()))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(child, slot):
                    self._start(child, slot)
                case Drain(child):
                    self._workers[child].link.drain()
                case Kill(child):
                    self._workers[child].process.kill()
                case Log(event, fields, is_warning):
                    log.log(logging.WARNING if is_warning else logging.INFO, event, extra=fields)
                case End(code):
                    self._code = code

    def _start(self, child: int, slot: int) -> None:
        try:
            process, link = self._launch(slot)
        except OSError as error:  # the machine has no process or descriptor left
            self.last_error = f"worker {slot} cannot be started: {error}"
            log.warning("worker cannot be started", extra={"worker": slot, "error": str(error)})
            self._do(self._fleet.on_exit(child, 1, time.monotonic()))
            return
        self._workers[child] = _Worker(process, link, slot)
        self._selector.register(link.socket, selectors.EVENT_READ, lambda: self._on_reports(child))

    def _on_reports(self, child: int) -> None:
        worker = self._workers.get(child)
        if worker is None or worker.has_ended_link:
            return
        try:
            reports = worker.link.reports()
        except EOFError:
            self._end_link(worker)  # The end of the process follows, as a signal.
            return
        for report in reports:
            worker.error = report.error or worker.error
            if report.health is None:
                continue
            worker.health, worker.reported_at = report.health, time.monotonic()
            if report.metrics is not None:
                self.total.update(child, report.health.node, report.metrics)
            if report.health.waits:
                self._fleet.on_waits(child, time.monotonic())
            if report.health.ready:
                self._do(self._fleet.on_ready(child, time.monotonic()))

    def _end_link(self, worker: _Worker) -> None:
        if not worker.has_ended_link:
            worker.has_ended_link = True
            self._selector.unregister(worker.link.socket)

    def _on_signals(self) -> None:
        for number in self._signals.recv(4096):
            now = time.monotonic()
            if number == signal.SIGCHLD:
                self._reap()
            elif number == signal.SIGHUP and not self._has_lost_terminal():
                self._do(self._fleet.reload(now))
            elif number in _SIGNALS:
                self._do(self._fleet.stop(number, now))

    def _reap(self) -> None:
        for child, worker in [*self._workers.items()]:
            code = worker.process.poll()
            if code is None:
                continue
            self._on_reports(child)  # the last reports
            self._end_link(worker)
            worker.link.close()
            del self._workers[child]
            self.total.on_exit(child)
            if worker.error is not None:
                self.last_error = worker.error
            exit_code = code if code >= 0 else 128 - code
            self._do(self._fleet.on_exit(child, exit_code, time.monotonic()))

    def _end(self) -> None:
        for worker in self._workers.values():
            worker.process.kill()
        self._selector.close()
        self._waker.close()
        self._signals.close()

    def _has_lost_terminal(self) -> bool:
        """Return whether SIGHUP means that the terminal of this process was closed."""
        return self._had_terminal and not _has_terminal()

    # health ---------------------------------------------------------------------------------------

    def _routes(self, metrics: Routes) -> Routes:
        def respond(path: str, accept: str) -> Response | None:
            with self._lock:
                return health(path) if path in (LIVE, READY) else metrics(path, accept)

        def health(path: str) -> Response:
            found = {slot: self._health(slot) for slot in self._slots}
            ready = sum(health.ready for health in found.values())
            is_ready = ready == len(found) and not self._fleet.is_stopping
            is_live = all(health.live for health in found.values())
            body: dict[str, object] = {
                "live": is_live,
                "ready": is_ready,
                "reason": None if is_ready else f"{ready} of {len(found)} workers are ready",
                "workers": list(found.values()),
            }
            if self._fleet.is_stopping:
                body["reason"] = "draining"
            return health_response(is_live if path == LIVE else is_ready, body)

        return respond

    def _health(self, slot: int) -> Health:
        """Return the health of the worker in a slot."""
        child = self._fleet.serving(slot)
        worker = None if child is None else self._workers.get(child.number)
        if worker is None or worker.health is None:
            # The worker is starting, or will be restarted.
            ends = self._fleet.early_ends(slot)
            reason = f"starting, after {ends} early ends" if ends else "starting"
            return Health(node="", live=True, ready=False, reason=reason)
        silent = time.monotonic() - worker.reported_at
        if silent >= LIVE_SECONDS:
            reason = f"the worker has sent no report for {silent:.0f} seconds"
            return Health(node=worker.health.node, live=False, ready=False, reason=reason)
        return worker.health


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
