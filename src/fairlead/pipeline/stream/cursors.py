"""Cursors of topics in the properties of bronze.attempts. One commit adds the files of a batch and
moves the cursors.

The cursor "kafka/<topic>/<partition>" holds the next offset and, for each store, the position up to
which the lake has the store's attempts of this partition. The cursor "<store id>/attempts" holds
the position up to which the lake has all attempts of the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

from fairlead.model.fields import PositionText
from fairlead.model.reading import json_reader
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.stream.messages import topic_partition
from fairlead.pipeline.warehouse.table import TableState
from fairlead.ports.history import START, Position


class Cursor(msgspec.Struct, frozen=True):
    """Cursor of one partition."""

    next: Annotated[int, msgspec.Meta(ge=0)]
    """Next offset to read."""
    partitions: Annotated[int, msgspec.Meta(ge=1)]
    """Number of partitions of the topic."""
    stores: dict[str, PositionText]
    """Position, by store, up to which the lake has the store's attempts of this partition."""

    def __str__(self) -> str:
        return msgspec.json.encode(self, order="sorted").decode()

    def position_of(self, store_id: str) -> Position:
        """Return the position of this store."""
        position = self.stores.get(store_id)
        return START if position is None else Position.of(position)


_decode = json_reader(Cursor)


def cursor_name(topic: str, partition: int) -> str:
    """Return the name of the cursor of a partition."""
    return f"kafka/{topic}/{partition}"


def store_cursor(store_id: str) -> str:
    """Return the name of the cursor of a store."""
    return f"{store_id}/attempts"


def store_position(seen: TableState, store_id: str) -> Position:
    """Return the position up to which the lake has all attempts of the store."""
    name = store_cursor(store_id)
    try:
        position = Position.of(seen.cursors.get(name, str(START)))
    except ValueError as error:
        raise broken_cursor(name, error) from error
    if not 0 <= min(position) <= max(position) < 1 << 63:
        raise broken_cursor(name, f"{position} is out of range")
    return position


def cursors_of(seen: TableState, topic: str) -> dict[int, Cursor]:
    """Return the cursors of a topic, by partition."""
    return {partition: cursor for (name, partition), cursor in _all(seen).items() if name == topic}


def topics_of(seen: TableState, store_id: str) -> dict[str, dict[int, Cursor]]:
    """Return the cursors of each topic that exports attempts of this store, by topic and
    partition. There is usually at most one topic."""
    found: dict[str, dict[int, Cursor]] = {}
    for (topic, partition), cursor in _all(seen).items():
        if store_id in cursor.stores:
            found.setdefault(topic, {})[partition] = cursor
    return found


def topics_beside(seen: TableState, topic: str) -> dict[str, str]:
    """Return another topic than this one for each store whose attempts the other exports."""
    return {
        store: other
        for (other, _), cursor in _all(seen).items()
        if other != topic
        for store in cursor.stores
    }


def streamed_test(seen: TableState, store_id: str) -> Callable[[Position, str], bool]:
    """Return a function that takes the position and task id of an attempt of this store, and
    returns whether a topic has already brought the attempt to the lake."""
    topics = topics_of(seen, store_id).values()

    def is_streamed(position: Position, task_id: str) -> bool:
        for cursors in topics:
            partitions = next(iter(cursors.values())).partitions
            cursor = cursors.get(topic_partition(task_id, partitions))
            if cursor is not None and position <= cursor.position_of(store_id):
                return True
        return False

    return is_streamed


def release(seen: TableState, store_id: str, through: Position) -> dict[str, str | None]:
    """Return the moves of cursors that remove this store from its topics, or no moves if a topic
    has exported attempts beyond `through`."""
    moves: dict[str, str | None] = {}
    for topic, cursors in topics_of(seen, store_id).items():
        for partition, cursor in cursors.items():
            if cursor.position_of(store_id) > through:
                return {}
            others = {
                name: position for name, position in cursor.stores.items() if name != store_id
            }
            after = str(msgspec.structs.replace(cursor, stores=others)) if others else None
            moves[cursor_name(topic, partition)] = after
    return moves


def _all(seen: TableState) -> dict[tuple[str, int], Cursor]:
    found = {}
    for name, text in seen.cursors.items():
        if name.startswith("kafka/"):
            topic, _, partition = name.removeprefix("kafka/").rpartition("/")
            try:
                found[topic, int(partition)] = _decode(text)
            except ValueError as error:  # also that of msgspec
                raise broken_cursor(name, error) from error
    return found


def broken_cursor(name: str, error: object) -> BrokenLake:
    """Return the error of a cursor of bronze.attempts that cannot be read."""
    return BrokenLake(
        f"the cursor {name!r} of bronze.attempts cannot be read: {error}; restore the"
        " catalog of the lake"
    )
