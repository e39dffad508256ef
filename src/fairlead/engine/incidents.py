"""Incidents: reports of the parts of a node, written into the store, and their delivery to the
application: at least once, usually exactly once.

A round claims incidents that are due, calls `on_incident` in threads, and records each call that
returned. A claim hides an incident from other nodes for a limited time: a newly elected node
continues where the previous one stopped, and after that time delivers what a dead node had
claimed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fairlead.clock import MICROS
from fairlead.declare.on_incident import OnIncident
from fairlead.engine.context import NodeContext
from fairlead.engine.lifecycle import SimplePart
from fairlead.errors import StoreUnavailable
from fairlead.model import Incident, IncidentReport
from fairlead.pauses import event_or_pause

log = logging.getLogger("fairlead.incidents")

CALLS = 4
"""Calls of `on_incident` at once."""

MOST_HANGING = 8
"""Calls beyond their time limit after which no further call begins until one of them ends."""

CLAIM = 5 * CALLS
"""Incidents in one claim. An incident waits for at most five calls before its own."""

FIRST_RETRY, LONGEST_RETRY = 10.0, 3600.0
"""Seconds before the second call for an incident, and the longest pause; each failed call doubles
the pause."""

STOP_SECONDS = 5.0
"""Seconds for which a stopping node waits for running calls of `on_incident`."""

_PAUSE = 1.0
"""Seconds before a repeated write while the store is unavailable."""

MOST_WAITING = 10_000
"""Reports that wait for the store; further ones are only logged."""


class IncidentReports(SimplePart):
    """Write reports into the store, and then call `on_written`, which begins their delivery."""

    def __init__(self, context: NodeContext, on_written: Callable[[], None]) -> None:
        self._store = context.cluster.incidents
        self._clock = context.clock
        self._on_written = on_written
        self._waiting: dict[tuple[str, str, int], IncidentReport] = {}
        self._work = asyncio.Event()

    def add(self, reports: Sequence[IncidentReport]) -> None:
        """Take reports; a second report of one incident replaces the first."""
        for report in reports:
            key = (report.kind, report.subject, report.version)
            if len(self._waiting) < MOST_WAITING or key in self._waiting:
                self._waiting[key] = report
            else:
                log.error(
                    "incident not recorded: too many wait for the store",
                    extra={"kind": report.kind.value, "subject": report.subject},
                )
        self._work.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            most = MOST_WAITING
            while self._waiting:
                reports = list(self._waiting.values())[:most]
                try:
                    await self._store.report(reports, self._clock.now())
                except StoreUnavailable as error:
                    log.warning(
                        "incidents wait while the store is unavailable", extra={"error": str(error)}
                    )
                    await self._clock.sleep(_PAUSE)
                    continue
                except Exception:
                    if len(reports) > 1:  # find the report that the store cannot take
                        most = len(reports) // 2
                        continue
                    fields = {"kind": reports[0].kind.value, "subject": reports[0].subject}
                    log.exception("incident cannot be recorded", extra=fields)
                for report in reports:
                    key = (report.kind, report.subject, report.version)
                    if self._waiting.get(key) is report:
                        del self._waiting[key]
                self._on_written()


class IncidentDelivery:
    """Rounds that deliver incidents. `stop` waits for running calls. Without `on_incident`,
    incidents are only logged."""

    def __init__(self, context: NodeContext) -> None:
        self._store = context.cluster.incidents
        self._observer = context.observer
        self._clock = context.clock
        self._callback = context.served.on_incident
        self._timeout = context.served.incident_timeout
        self._calls = asyncio.Semaphore(CALLS)
        self._returned: list[int] = []
        """Ids of incidents whose calls returned and are not yet recorded in the store."""
        self._failed: list[tuple[int, int]] = []
        """Pairs of (id, instant of the next call) that are not yet recorded in the store."""
        self._hanging: dict[int, asyncio.Future[Any]] = {}
        """Calls beyond their time limit, by the id of the incident."""
        self._next_retry: int | None = None
        """Earliest instant of a repeated call, as far as this node knows."""
        self._is_stopping = False
        self._idle = asyncio.Event()
        """Set while no round runs."""
        self._idle.set()

    async def run(self) -> None:
        """Return at once: the rounds run in the pollers."""

    async def stop(self) -> None:
        """Begin no further call. Wait for calls that run, for at most STOP_SECONDS, so that another
        node does not repeat them."""
        self._is_stopping = True
        if not await event_or_pause(self._idle, STOP_SECONDS):
            log.warning("node stops during a call of on_incident; it will be repeated")

    async def round(self) -> float | None:
        """Deliver every incident that is due. Return the seconds until a failed one is due
        again."""
        self._next_retry = None
        self._idle.clear()
        try:
            self._settle_hanging()
            await self._record()
            while self._may_call and (claimed := await self._claim()):
                await asyncio.gather(*map(self._deliver, claimed))
                await self._record()
        finally:
            try:
                await self._record()
            finally:
                self._idle.set()
        if self._next_retry is None:
            return None
        return max(0.0, (self._next_retry - self._clock.now()) / MICROS)

    @property
    def _may_call(self) -> bool:
        return not self._is_stopping and len(self._hanging) < MOST_HANGING

    async def _claim(self) -> Sequence[Incident]:
        now = self._clock.now()
        until = now + round((CLAIM // CALLS + 1) * self._timeout * MICROS)
        return await self._store.claim(now, until, CLAIM)

    async def _deliver(self, incident: Incident) -> None:
        async with self._calls:
            if not self._may_call:
                self._failed.append((incident.id, self._clock.now()))  # due at once, for any node
                return
            if incident.id in self._hanging:
                return  # This claim hides the incident again while its call still runs.
            log.error(
                "incident",
                extra={
                    "kind": incident.kind.value,
                    "incident_id": incident.id,
                    "subject": incident.subject,
                    "queue": incident.queue,
                    "task_name": incident.name,
                    "details": incident.details,
                },
            )
            error = None if self._callback is None else await self._call(self._callback, incident)
            if error is None:
                self._returned.append(incident.id)
                self._observer.counted("delivered_incidents")
            else:
                self._on_failed(incident, error)

    async def _call(self, callback: OnIncident, incident: Incident) -> BaseException | None:
        """Return None if the call returned in time, else its exception or a TimeoutError."""
        try:
            result = await self._in_time(_in_thread(callback, incident), incident)
            if inspect.isawaitable(result):
                task = asyncio.ensure_future(_awaited(result))
                try:
                    result = await self._in_time(task, incident)
                finally:
                    task.cancel()
        except TimeoutError as error:
            return error
        return result if isinstance(result, BaseException) else None

    async def _in_time(self, call: asyncio.Future[Any], incident: Incident) -> Any:
        await asyncio.wait([call], timeout=self._timeout)
        if not call.done():
            self._hanging[incident.id] = call
            raise TimeoutError(f"on_incident has not returned within {self._timeout:g} s")
        return asyncio.CancelledError() if call.cancelled() else call.result()

    def _on_failed(self, incident: Incident, error: BaseException) -> None:
        pause = min(LONGEST_RETRY, FIRST_RETRY * 2.0 ** min(incident.deliveries - 1, 20))
        log.error(
            "on_incident failed; it is called again later",
            extra={"incident_id": incident.id, "seconds": pause},
            exc_info=error,
        )
        self._observer.counted("failed_deliveries")
        due = self._clock.now() + round(pause * MICROS)
        self._failed.append((incident.id, due))
        self._next_retry = due if self._next_retry is None else min(self._next_retry, due)

    def _settle_hanging(self) -> None:
        """Take the results of late calls: one that returned has delivered its incident."""
        for number, call in list(self._hanging.items()):
            if call.done():
                del self._hanging[number]
                result = asyncio.CancelledError() if call.cancelled() else call.result()
                if inspect.iscoroutine(result):
                    result.close()  # Too late to run it: the incident is delivered again.
                elif not isinstance(result, BaseException):
                    self._returned.append(number)
                    self._observer.counted("delivered_incidents")
        if len(self._hanging) >= MOST_HANGING:
            log.error(
                "on_incident hangs: no incident is delivered until a call returns",
                extra={"calls": len(self._hanging)},
            )

    async def _record(self) -> None:
        """Write the results of calls."""
        if self._returned:
            await self._store.delivered(self._returned, self._clock.now())
            self._returned = []
        if self._failed:
            await self._store.retry(self._failed)
            self._failed = []


def _in_thread(callback: OnIncident, incident: Incident) -> asyncio.Future[Any]:
    """Call in a new daemon thread, which does not keep the process alive. The result of the future
    is the returned value or the exception."""
    call: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        try:
            result: Any = callback(incident)
        except BaseException as error:
            result = error
        if not call.cancelled():
            call.set_result(result)

    call.set_running_or_notify_cancel()  # A cancelled wait must not cancel the call.
    threading.Thread(target=run, name="fairlead-on-incident", daemon=True).start()
    return asyncio.wrap_future(call)


async def _awaited(result: Awaitable[Any]) -> Any:
    """Return the result of the awaitable, or the exception that it raised."""
    try:
        return await result
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return error
