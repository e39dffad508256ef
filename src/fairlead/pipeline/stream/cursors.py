"""Cursors of topics in the manifest of bronze.attempts, moved in the same update that lists the
files.

The cursor "kafka/<topic>/<partition>" has the next offset and, for each store, the position up to
which attempts of this partition are in the lake. The cursor "<store id>/attempts" has the position
up to which all attempts of the store are.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fairlead.pipeline.lake.manifest import Manifest
from fairlead.pipeline.stream.messages import topic_partition
from fairlead.ports.history import START, Position


class Cursor(msgspec.Struct, frozen=True):
    """Cursor of one partition."""

    next: int
    """Next offset to read."""
    partitions: int
    """Number of partitions of the topic."""
    stores: dict[str, str]
    """Positions by store: all its attempts of this partition up to the position are in the lake."""

    def __str__(self) -> str:
        return msgspec.json.encode(self, order="sorted").decode()

    def reached(self, store_id: str) -> Position:
        """Return the position of this store."""
        place = self.stores.get(store_id)
        return START if place is None else Position.of(place)


def cursor_name(topic: str, partition: int) -> str:
    """Return the name of the cursor in the manifest."""
    return f"kafka/{topic}/{partition}"


def store_cursor(store_id: str) -> str:
    """Return the name of the cursor of a store."""
    return f"{store_id}/attempts"


def reached(manifest: Manifest, store_id: str) -> Position:
    """Return the position up to which all attempts of the store are in the lake."""
    place = manifest.cursors.get(store_cursor(store_id))
    return START if place is None else Position.of(place)


def cursors_of(manifest: Manifest, topic: str) -> dict[int, Cursor]:
    """Return the cursors by partition."""
    return {
        partition: cursor for (name, partition), cursor in _all(manifest).items() if name == topic
    }


def topics_of(manifest: Manifest, store_id: str) -> dict[str, dict[int, Cursor]]:
    """Return the topics with attempts of this store that were not released; usually at most one."""
    found: dict[str, dict[int, Cursor]] = {}
    for (topic, partition), cursor in _all(manifest).items():
        if store_id in cursor.stores:
            found.setdefault(topic, {})[partition] = cursor
    return found


def topics_by_store(manifest: Manifest) -> dict[str, set[str]]:
    """Return the positions of every store with attempts by topics."""
    found: dict[str, set[str]] = {}
    for (topic, _), cursor in _all(manifest).items():
        for store_id in cursor.stores:
            found.setdefault(store_id, set()).add(topic)
    return found


def streamed(manifest: Manifest, store_id: str) -> Callable[[Position, str], bool]:
    """Return a test whether an attempt beyond the store's own cursor already came by a stream, by
    position and task."""
    topics = topics_of(manifest, store_id).values()

    def has_come(place: Position, task_id: str) -> bool:
        for cursors in topics:
            partitions = next(iter(cursors.values())).partitions
            cursor = cursors.get(topic_partition(task_id, partitions))
            if cursor is not None and place <= cursor.reached(store_id):
                return True
        return False

    return has_come


def release(
    manifest: Manifest, store_id: str, through: Position
) -> dict[str, tuple[str | None, str | None]]:
    """Return the moves that release the topics of this store; none while they have attempts beyond
    `through`."""
    moves: dict[str, tuple[str | None, str | None]] = {}
    for topic, cursors in topics_of(manifest, store_id).items():
        for partition, cursor in cursors.items():
            if cursor.reached(store_id) > through:
                return {}
            others = {name: place for name, place in cursor.stores.items() if name != store_id}
            after = str(msgspec.structs.replace(cursor, stores=others)) if others else None
            moves[cursor_name(topic, partition)] = (str(cursor), after)
    return moves


def _all(manifest: Manifest) -> dict[tuple[str, int], Cursor]:
    found = {}
    for name, text in manifest.cursors.items():
        if name.startswith("kafka/"):
            topic, _, partition = name.removeprefix("kafka/").rpartition("/")
            found[topic, int(partition)] = msgspec.json.decode(text, type=Cursor)
    return found
