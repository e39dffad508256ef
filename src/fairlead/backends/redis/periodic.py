"""The periodic tasks on Redis: one JSON record each in a hash, changed by compare-and-set.

One step submits the task of a slot, and a second step records that the slot has passed. If a node
dies between the two, the unique key of the slot prevents a second task, for as long as the store
keeps unique keys.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, Protocol

import msgspec

from fairlead.backends.redis.registry import RedisSteps, Registry
from fairlead.backends.redis.sharded.steps import RedisCall
from fairlead.model import NewTask, Submitted
from fairlead.model.reading import json_reader
from fairlead.ports.notification import Notification
from fairlead.ports.periodic_store import Advance, PeriodicDeclaration, PeriodicRecord

_SWAP = resources.files(__package__).joinpath("swap.lua").read_text()
_encode = msgspec.json.Encoder().encode
_read = json_reader(PeriodicRecord)
log = logging.getLogger("fairlead.redis")
replace = msgspec.structs.replace


class TaskInserter(Protocol):
    """The part of a task store that submits tasks."""

    def submission(
        self, tasks: Sequence[NewTask]
    ) -> RedisSteps[tuple[list[Submitted], Notification]]:
        """Insert the tasks."""


class RedisPeriodics:
    """A `fairlead.ports.periodic_store.PeriodicStore` of the applications that share a prefix."""

    def __init__(self, prefix: str, registry: Registry, tasks: TaskInserter) -> None:
        self._key = f"{{{prefix}}}:periodics"
        self._registry = registry
        self._tasks = tasks

    def register(
        self, declared: Sequence[PeriodicDeclaration], node: str, now: int
    ) -> RedisSteps[None]:
        at = yield from self.clock(now)
        for each in declared:
            fields = {**msgspec.structs.asdict(each), "declared_at": at, "declared_by": node}

            def registered(
                found: PeriodicRecord | None, fields: dict[str, Any] = fields
            ) -> PeriodicRecord:
                if found is None:
                    return PeriodicRecord(**fields, registered_at=now, passed_at=now)
                is_same = (found.cron, found.timezone) == (fields["cron"], fields["timezone"])
                passed_at = found.passed_at if is_same else max(found.passed_at, now)
                return replace(found, **fields, version=found.version + 1, passed_at=passed_at)

            yield from self._change(each.name, registered)

    def declare(self, names: Sequence[str], node: str, now: int, every: int) -> RedisSteps[None]:
        at = yield from self.clock(now)

        def declared(found: PeriodicRecord | None) -> PeriodicRecord | None:
            if found is None or found.declared_at > at - every:
                return None
            return replace(found, declared_at=at, declared_by=node)

        for name in names:
            yield from self._change(name, declared)

    def records(self) -> RedisSteps[list[PeriodicRecord]]:
        found = [_readable(value) for value in (yield RedisCall(("HVALS", self._key)))]
        readable = [record for record in found if record is not None]
        return sorted(readable, key=lambda record: record.name)

    def clock(self, now: int) -> RedisSteps[int]:
        return (yield from self._registry.clock())

    def submission(
        self, advance: Advance, tasks: Sequence[NewTask]
    ) -> RedisSteps[tuple[list[Submitted], Notification] | None]:
        raw, found = yield from self._record(advance.name)
        if found is None or found.paused or found.version != advance.version:
            return None
        submitted = yield from self._tasks.submission(tasks)
        passed = replace(
            found,
            version=found.version + 1,
            passed_at=advance.passed_at,
            last_slot_at=found.last_slot_at
            if advance.last_slot_at is None
            else advance.last_slot_at,
        )
        return submitted if (yield from self._swap(advance.name, raw, _encode(passed))) else None

    def pause(self, name: str, paused: bool, now: int) -> RedisSteps[bool]:
        def changed(found: PeriodicRecord | None) -> PeriodicRecord | None:
            if found is None:
                return None
            resumes = found.paused and not paused
            passed_at = max(found.passed_at, now) if resumes else found.passed_at
            return replace(found, paused=paused, version=found.version + 1, passed_at=passed_at)

        return (yield from self._change(name, changed))

    def remove(self, name: str, declared_at: int) -> RedisSteps[bool]:
        raw, found = yield from self._record(name)
        if found is None or found.declared_at != declared_at:
            return False
        return (yield from self._swap(name, raw, b""))

    # helpers --------------------------------------------------------------------------------------

    def _record(self, name: str) -> RedisSteps[tuple[bytes, PeriodicRecord | None]]:
        raw = (yield RedisCall(("HGET", self._key, name))) or b""
        return raw, _readable(raw) if raw else None

    def _swap(self, name: str, old: bytes, new: bytes) -> RedisSteps[bool]:
        return bool((yield RedisCall(("EVAL", _SWAP, 1, self._key, name, old, new))))

    def _change(
        self, name: str, changed: Callable[[PeriodicRecord | None], PeriodicRecord | None]
    ) -> RedisSteps[bool]:
        """Replace a record by `changed(record)`, and repeat this if another client has changed the
        record meanwhile. Return False if `changed` returns None."""
        while True:
            raw, found = yield from self._record(name)
            new = changed(found)
            if new is None:
                return False
            if (yield from self._swap(name, raw, _encode(new))):
                return True


def _readable(record: bytes) -> PeriodicRecord | None:
    """Return a record; None if it cannot be read. The next worker that declares the periodic task
    writes its record again."""
    try:
        return _read(record)
    except msgspec.DecodeError as error:
        log.error("the record of a periodic task cannot be read", extra={"error": str(error)})
        return None
