"""What a build has to make anew: the partitions that changed since the last one, and what they
touch. Pure, but for a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from fairlead.pipeline.lake import durable
from fairlead.pipeline.lake.manifest import Manifest
from fairlead.pipeline.lake.parts import Seen, changed, seen

EDITION = 2
"""Raised when the same attempts make other tables than before: everything is then built anew."""

_FILE = "_build.json"


class Built(msgspec.Struct, frozen=True):
    """What the last build has seen."""

    edition: int = 0
    settings: str = ""
    """A digest: other objectives or prices make other tables."""
    attempts: dict[str, Seen] = {}
    """The partitions of bronze.attempts."""
    events: dict[str, Seen] = {}
    until: int = 0
    """Microseconds: up to there the store's history was exported."""
    again: list[str] = []
    """Hours that the next build makes anew though nothing changed in them: rows were taken out of
    them."""


class Plan(msgspec.Struct, frozen=True):
    """What to build. `full`: everything; else what these partitions of bronze touch."""

    full: bool
    attempts: Manifest
    events: Manifest
    changed_attempts: frozenset[str]
    changed_events: frozenset[str]
    before: Built
    until: int

    @property
    def is_empty(self) -> bool:
        """Nothing has changed since the last build."""
        return not (self.full or self.changed_attempts or self.changed_events or self.before.again)


def plan(attempts: Manifest, events: Manifest, before: Built, settings: str, full: bool) -> Plan:
    """Compare what is there with what was built. A partition that is gone, or another edition, asks
    for a full build."""
    new_attempts, new_events = (
        changed(attempts.parts, before.attempts),
        changed(events.parts, before.events),
    )
    gone = (before.attempts.keys() - attempts.parts.keys()) | (
        before.events.keys() - events.parts.keys()
    )
    everything = full or bool(gone) or before.edition != EDITION or before.settings != settings
    return Plan(
        full=everything,
        attempts=attempts,
        events=events,
        changed_attempts=frozenset(new_attempts),
        changed_events=frozenset(new_events),
        before=before,
        until=max(attempts.written_at, events.written_at),
    )


def last_build(root: Path) -> Built:
    """Of this lake; of none, or one that cannot be read, nothing is known, and everything is
    built."""
    try:
        return msgspec.json.decode((root / _FILE).read_bytes(), type=Built)
    except (OSError, msgspec.DecodeError):
        return Built()


def built(root: Path, plan: Plan, settings: str) -> None:
    """Note that the plan was carried out."""
    note(
        root,
        Built(EDITION, settings, seen(plan.attempts.parts), seen(plan.events.parts), plan.until),
    )


def build_again(root: Path, hours: Iterable[str]) -> None:
    """Let the next build make these hours anew. Nobody else may be building."""
    before = last_build(root)
    if before.edition:
        note(root, msgspec.structs.replace(before, again=sorted({*before.again, *hours})))


def note(root: Path, record: Built) -> None:
    """Let this be what the last build has seen."""
    durable.write(root / _FILE, lambda aside: aside.write_bytes(msgspec.json.encode(record)))
