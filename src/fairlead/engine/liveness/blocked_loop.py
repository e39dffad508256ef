"""A thread that keeps a node alive while a handler blocks its event loop.

The membership, the ownership and the cluster limits do this work themselves while the loop
responds. The thread has its own event loop and its own connections. Code that holds Python's global
lock for long stops this thread too: the node then looks dead to others, and its leases expire.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence

from fairlead.clock import MICROS
from fairlead.engine import liveness
from fairlead.engine.context import NodeContext
from fairlead.engine.executors import invocation
from fairlead.engine.lifecycle import SimplePart
from fairlead.engine.run import Run
from fairlead.model import IncidentKind, IncidentReport

log = logging.getLogger("fairlead.liveness")

_ASK_EVERY = 0.25  # seconds
_MOST_FRAMES = 12

Renewal = Callable[[], Awaitable[None]]
"""Renews one kind of record of this node, in another event loop. May raise StoreUnavailable."""


class BlockedLoop(SimplePart):
    """Watch the event loop of a node. While the loop is blocked, call each of `renewals`, and
    report what blocks the loop."""

    def __init__(self, context: NodeContext, renewals: Sequence[Renewal]) -> None:
        self._context = context
        self._renewals = renewals
        self._is_waiting = False
        """Whether the thread waits for a response of the loop."""
        self._is_over = threading.Event()
        self._is_blocked = False
        self._reported: IncidentReport | None = None
        """Report of what blocks the loop, or blocked it last."""
        self._renew_at = 0.0
        """Monotonic seconds."""

    async def run(self) -> None:
        """Watch until cancelled."""
        loop, thread_id = asyncio.get_running_loop(), threading.get_ident()
        self._is_over.clear()
        watcher = threading.Thread(
            target=self._watch, args=(loop, thread_id), name="fairlead-liveness", daemon=True
        )
        watcher.start()
        try:
            await asyncio.Event().wait()
        finally:
            self._is_over.set()

    def _respond(self) -> None:
        self._is_waiting = False

    # in the thread --------------------------------------------------------------------------------

    def _watch(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        rounds = 0
        """Rounds without a response. Elapsed time would also count a suspended machine."""
        with contextlib.closing(asyncio.new_event_loop()) as own:
            while not self._is_over.wait(_ASK_EVERY):
                rounds = rounds + 1 if self._is_waiting else 0
                if not self._is_waiting:
                    self._is_waiting = True
                    with contextlib.suppress(RuntimeError):  # the loop has been closed
                        loop.call_soon_threadsafe(self._respond)
                blocked_for = rounds * _ASK_EVERY
                if blocked_for >= liveness.BLOCKED_SECONDS:
                    own.run_until_complete(self._keep_alive(loop, thread_id, blocked_for))
                elif self._is_blocked and not rounds:
                    self._is_blocked = False
                    log.info("the event loop responds again", extra=self._fields())
                    own.run_until_complete(self._context.cluster.database.close_loop())
            own.run_until_complete(self._context.cluster.database.close_loop())

    async def _keep_alive(
        self, loop: asyncio.AbstractEventLoop, thread_id: int, blocked_for: float
    ) -> None:
        if not self._is_blocked:
            self._is_blocked, self._renew_at = True, 0.0
            self._reported = self._report(loop, thread_id, blocked_for)
        if time.monotonic() >= self._renew_at:
            self._renew_at = time.monotonic() + liveness.HEARTBEAT_SECONDS
            for renewal in (self._record, *self._renewals):
                await self._try(renewal)

    async def _try(self, renewal: Renewal) -> None:
        try:
            async with asyncio.timeout(liveness.RENEWAL_TIMEOUT):
                await renewal()
        except Exception as error:
            # Any error: if this thread ended, the node would look dead.
            fields = self._fields() | {"error": str(error) or type(error).__name__}
            log.warning("renewal failed while the event loop is blocked", extra=fields)

    async def _record(self) -> None:
        if self._reported is not None:
            now = self._context.clock.now()
            await self._context.cluster.incidents.report([self._reported], now)

    def _report(
        self, loop: asyncio.AbstractEventLoop, thread_id: int, blocked_for: float
    ) -> IncidentReport:
        """Log and count what blocks the loop; return the report of it."""
        stack = _stack(thread_id)
        run = getattr(asyncio.current_task(loop), "run", None)
        trigger = run.trigger if isinstance(run, Run) else None
        culprit = f"task {trigger.name} ({trigger.id})" if trigger else "code outside of handlers"
        fields = self._fields() | {"blocked_by": culprit, "stack": stack}
        log.error("the event loop is blocked", extra=fields)
        self._context.observer.counted("blocked_loops")
        return IncidentReport(
            kind=IncidentKind.BLOCKED_LOOP,
            subject=self._context.name,
            details=(
                f"{culprit} has blocked the event loop of {self._context.name} for more than"
                f" {blocked_for:.0f} s, and with it all other asynchronous handlers there; await,"
                f" or make the handler a plain function, which runs in a thread. Stack: {stack}"
            ),
            since=self._context.clock.now() - round(blocked_for * MICROS),
            queue=trigger.queue if trigger else "",
            name=trigger.name if trigger else "",
        )

    def _fields(self) -> dict[str, object]:
        return {"node": self._context.name}


def _stack(thread_id: int) -> str:
    """Return the calls of a thread within its handler, or else its innermost calls, as `file:line
    function`, the innermost last."""
    calls = list(traceback.extract_stack(sys._current_frames().get(thread_id)))
    begins = [n for n, call in enumerate(calls) if call.filename == invocation.__file__]
    calls = calls[begins[-1] + 1 :] if begins else calls
    calls = calls[-_MOST_FRAMES:]
    return " > ".join(f"{call.filename}:{call.lineno} {call.name}" for call in calls)
