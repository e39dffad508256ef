"""The plan of a build: the partitions that changed since the last one, and the partitions they
affect. Pure, except for one file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from fairlead.model.reading import json_reader
from fairlead.pipeline import durable
from fairlead.pipeline.lake.manifest import Manifest, check_part
from fairlead.pipeline.lake.parts import PartState, changed, states_of

EDITION = 3
"""Edition of the tables, raised when new code makes other tables from the same attempts; a new
edition needs a full build."""

_FILE = "_build.json"


class Built(msgspec.Struct, frozen=True):
    """State of the lake at the last build."""

    edition: int = 0
    settings: str = ""
    """Digest of objectives, prices and bills, which change the tables."""
    attempts: dict[str, PartState] = {}
    """Partitions of bronze.attempts at that build."""
    events: dict[str, PartState] = {}
    until: int = 0
    """Instant up to which the store's history was exported, in microseconds since the epoch."""
    again: list[str] = []
    """Hours to rebuild even if bronze did not change, because rows were erased from them."""


_decode = json_reader(Built)


class BuildPlan(msgspec.Struct, frozen=True):
    """Work of a build: everything if `full`, else what the changed partitions of bronze affect."""

    full: bool
    attempts: Manifest
    events: Manifest
    changed_attempts: frozenset[str]
    changed_events: frozenset[str]
    before: Built
    until: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to build."""
        return not (self.full or self.changed_attempts or self.changed_events or self.before.again)


def plan(
    attempts: Manifest, events: Manifest, before: Built, settings: str, full: bool
) -> BuildPlan:
    """Compare the present state with the last build. A missing partition, another edition or other
    settings need a full build."""
    new_attempts, new_events = (
        changed(attempts.parts, before.attempts),
        changed(events.parts, before.events),
    )
    gone = (before.attempts.keys() - attempts.parts.keys()) | (
        before.events.keys() - events.parts.keys()
    )
    everything = full or bool(gone)
    return plan_of(attempts, events, before, settings, everything, new_attempts, new_events)


def plan_of(
    attempts: Manifest,
    events: Manifest,
    before: Built,
    settings: str,
    full: bool,
    changed_attempts: Iterable[str],
    changed_events: Iterable[str],
) -> BuildPlan:
    """Return the plan for these changed partitions. Another edition or other settings need a full
    build."""
    return BuildPlan(
        full=full or before.edition != EDITION or before.settings != settings,
        attempts=attempts,
        events=events,
        changed_attempts=frozenset(changed_attempts),
        changed_events=frozenset(changed_events),
        before=before,
        until=max(attempts.written_at, events.written_at),
    )


def last_build(root: Path) -> Built:
    """Return the state at the last build of this lake; an empty state, which leads to a full build,
    if there is none or it cannot be read."""
    try:
        found = _decode((root / _FILE).read_bytes())
        for hour in found.again:
            check_part(hour)
    except (OSError, ValueError):  # also that of msgspec
        return Built()
    return found


def built(root: Path, plan: BuildPlan, settings: str) -> None:
    """Record that the plan was carried out."""
    note(
        root,
        Built(
            EDITION,
            settings,
            states_of(plan.attempts.parts),
            states_of(plan.events.parts),
            plan.until,
        ),
    )


def build_again(root: Path, hours: Iterable[str]) -> None:
    """Make the next build rebuild these hours. No build may be running."""
    before = last_build(root)
    if before.edition:
        note(root, msgspec.structs.replace(before, again=sorted({*before.again, *hours})))


def note(root: Path, record: Built) -> None:
    """Record the state of the last build."""
    durable.write(
        root / _FILE, lambda temporary: temporary.write_bytes(msgspec.json.encode(record))
    )
