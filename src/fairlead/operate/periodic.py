"""Commands for periodic tasks: show them, submit one now, pause, resume and remove them."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from fairlead.backends.sql.periodic import PeriodicRecord, PeriodicStore
from fairlead.clock import MICROS, to_datetime, to_micros
from fairlead.core import values
from fairlead.declare.handle import TaskHandle
from fairlead.declare.periodic import cron_times
from fairlead.errors import ConfigurationError, InvalidTask, NotAllowed, UnknownTask
from fairlead.operate.audit import Recorder
from fairlead.operate.changes import A_PERSON
from fairlead.operate.context import OperateContext
from fairlead.operate.filters import scope_of
from fairlead.operate.store.audit import AuditOutcome

UNDECLARED_SECONDS = 180.0
"""Seconds without a declaration after which a periodic task counts as declared by no worker. A
worker declares its periodic tasks at least every 90 seconds."""


class PeriodicStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A periodic task as an operator sees it."""

    record: PeriodicRecord
    is_declared: bool
    """Whether a living worker declares the periodic task."""
    next_slot_at: int | None
    """Next slot in microseconds since the epoch; None while no slot will run: the periodic task is
    paused or declared by nobody, or its cron expression never matches."""


class PeriodicManagement:
    """Commands for the periodic tasks of all applications on this store."""

    def __init__(self, context: OperateContext) -> None:
        self._context = context
        self._store = PeriodicStore(context.sql_store)
        self._database = context.store.database
        self._recorder = Recorder(context)

    def list(self, *, tenants: Collection[str] | None = None) -> list[PeriodicStatus]:
        """Return all periodic tasks, sorted by name. They belong to no tenant, so that with
        `tenants` none is returned. Raise InvalidTask."""
        if scope_of(tenants) is not None:
            return []
        at = self._now()
        return [
            self._status(record, at) for record in self._database.read_now(self._store.records())
        ]

    def run(self, name: str, *, actor: str = A_PERSON) -> TaskHandle:
        """Submit the task of a periodic task once, now, also while it is paused. Its slots do not
        change. The argument `slot`, if the function has one, is the present instant. Raise
        UnknownTask for a periodic task that this application does not declare."""
        _check_name(name)
        for periodic in self._context.periodics:
            if periodic.name == name:
                self._recorder.note(
                    self._recorder.entry(
                        actor, "run_periodic", outcome=AuditOutcome.ASKED, subject=name
                    )
                )
                slot = periodic.times.local(to_datetime(self._context.clock.now()))
                return self._context.submitter.submit([periodic.draft(slot)])[0]
        names = ", ".join(sorted(periodic.name for periodic in self._context.periodics))
        raise UnknownTask(
            f"no periodic task {name!r} in this application; it has"
            f" {names or 'none: name another one by --app MODULE:APP'}"
        )

    def pause(self, name: str, *, actor: str = A_PERSON) -> None:
        """Submit no slot of a periodic task until `resume`. Raise UnknownTask."""
        self._pause(name, True, actor)

    def resume(self, name: str, *, actor: str = A_PERSON) -> None:
        """Submit the slots of a paused periodic task again, from now on: slots of the pause do not
        run. Raise UnknownTask."""
        self._pause(name, False, actor)

    def remove(self, name: str, *, actor: str = A_PERSON) -> None:
        """Remove a periodic task that no living worker declares. Raise UnknownTask, and NotAllowed
        if a worker declared it within UNDECLARED_SECONDS."""
        _check_name(name)
        for status in self.list():
            if status.record.name == name:
                break
        else:
            raise UnknownTask(self._unknown(name))
        record = status.record
        steps = self._store.remove(name, record.declared_at)
        if status.is_declared or not self._recorder.run(
            steps, actor, "remove_periodic", subject=name
        ):
            raise NotAllowed(
                f"periodic task {name!r} is declared by worker {record.declared_by}: remove it from"
                f" the code, deploy, and wait {UNDECLARED_SECONDS:g} s; or pause it"
            )

    def _pause(self, name: str, paused: bool, actor: str) -> None:
        _check_name(name)
        verb = "pause_periodic" if paused else "resume_periodic"
        steps = self._store.pause(name, paused, self._now())
        if not self._recorder.run(steps, actor, verb, subject=name):
            raise UnknownTask(self._unknown(name))

    def _now(self) -> int:
        """Return the instant by the clock that all nodes share."""
        now: int = self._database.read_now(self._store.clock(self._context.clock.now()))
        return now

    def _unknown(self, name: str) -> str:
        names = ", ".join(record.name for record in self._database.read_now(self._store.records()))
        return f"no periodic task {name!r} is registered; known: {names or 'none'}"

    def _status(self, record: PeriodicRecord, at: int) -> PeriodicStatus:
        is_declared = record.declared_at > at - round(UNDECLARED_SECONDS * MICROS)
        following = None
        if is_declared and not record.paused:
            try:
                times = cron_times(record.cron, record.timezone)
                following = times.next_slot(to_datetime(at))
            except ConfigurationError:
                pass  # this machine does not know the timezone
        return PeriodicStatus(
            record=record,
            is_declared=is_declared,
            next_slot_at=None if following is None else to_micros(following),
        )


def _check_name(name: str) -> None:
    values.text("name of a periodic task", name, error=InvalidTask)
