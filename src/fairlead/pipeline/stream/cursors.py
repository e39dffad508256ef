"""How far the lake has read a topic: cursors in the manifest of bronze.attempts, moved in the act
that lets files count.

"kafka/<topic>/<partition>" tells where to read on and, for each store, up to which place its
attempts of this partition are in the lake; "<store id>/attempts" up to which place all of them are.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fairlead.pipeline.lake.manifest import Manifest
from fairlead.pipeline.stream.messages import topic_partition
from fairlead.ports.history import START, Position


class Cursor(msgspec.Struct, frozen=True):
    """Of one partition."""

    next: int
    """The offset to read on from."""
    partitions: int
    """Of the topic."""
    stores: dict[str, str]
    """By store: everything of it that is in this partition, up to a place, is in the lake."""

    def __str__(self) -> str:
        return msgspec.json.encode(self, order="sorted").decode()

    def reached(self, store_id: str) -> Position:
        """Of this store."""
        place = self.stores.get(store_id)
        return START if place is None else Position.of(place)


def cursor_name(topic: str, partition: int) -> str:
    """In the manifest."""
    return f"kafka/{topic}/{partition}"


def store_cursor(store_id: str) -> str:
    """Likewise, of a store."""
    return f"{store_id}/attempts"


def reached(manifest: Manifest, store_id: str) -> Position:
    """Up to there all attempts of the store are in the lake."""
    place = manifest.cursors.get(store_cursor(store_id))
    return START if place is None else Position.of(place)


def cursors_of(manifest: Manifest, topic: str) -> dict[int, Cursor]:
    """By partition."""
    return {
        partition: cursor for (name, partition), cursor in _all(manifest).items() if name == topic
    }


def topics_of(manifest: Manifest, store_id: str) -> dict[str, dict[int, Cursor]]:
    """The topics that attempts of this store came from, and have not been let go of; at most one as
    a rule."""
    found: dict[str, dict[int, Cursor]] = {}
    for (topic, partition), cursor in _all(manifest).items():
        if store_id in cursor.stores:
            found.setdefault(topic, {})[partition] = cursor
    return found


def topics_by_store(manifest: Manifest) -> dict[str, set[str]]:
    """Of every store whose attempts come by topics."""
    found: dict[str, set[str]] = {}
    for (topic, _), cursor in _all(manifest).items():
        for store_id in cursor.stores:
            found.setdefault(store_id, set()).add(topic)
    return found


def streamed(manifest: Manifest, store_id: str) -> Callable[[Position, str], bool]:
    """Tells whether an attempt behind the store's own cursor, by its place and its task, has come
    by a stream already."""
    topics = topics_of(manifest, store_id).values()

    def has_come(place: Position, task_id: str) -> bool:
        for cursors in topics:
            partitions = next(iter(cursors.values())).partitions
            cursor = cursors.get(topic_partition(task_id, partitions))
            if cursor is not None and place <= cursor.reached(store_id):
                return True
        return False

    return has_come


def let_go(
    manifest: Manifest, store_id: str, through: Position
) -> dict[str, tuple[str | None, str | None]]:
    """Moves by which the topics no longer bring this store's attempts; none while they have some
    beyond `through`."""
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
