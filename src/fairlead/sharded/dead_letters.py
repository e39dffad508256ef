"""The dead letters of a sharded queue, by an index of small heads; a payload is read only on
demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairlead.sharded import script
from fairlead.sharded.message import (
    DeadLetterHead,
    Field,
    RemovedMessage,
    letter_head,
    removed_message,
)
from fairlead.sharded.steps import MOST_BYTES, QueueSteps, Steps

PAGE = 100
"""Heads that one run of a script lists, at most."""

MOST_MOVED = 50
"""Dead letters that one run of a script writes again or removes, at most."""


class DeadLetterSteps:
    """The operations on the dead letters of one queue."""

    def __init__(self, queue: QueueSteps) -> None:
        self._queue = queue
        self._settings = queue.settings

    def heads(self, count: int, after: str) -> Steps[list[DeadLetterHead]]:
        """See `ShardedQueue.dead_letter_heads`."""
        found: list[DeadLetterHead] = []
        while len(found) < count:
            page = yield self._queue.run(script.HEADS, after, min(count - len(found), PAGE))
            if not page:
                break
            found += map(letter_head, page)
            after = found[-1].position
        return found

    def heads_at(self, positions: Sequence[str]) -> Steps[list[DeadLetterHead | None]]:
        """Return for each position its head, or None."""
        found: list[DeadLetterHead | None] = []
        for start in range(0, len(positions), PAGE):
            replies = yield self._queue.run(
                script.LETTERS, "dead:heads", *positions[start : start + PAGE]
            )
            found += [letter_head(entry) if entry else None for entry in replies]
        return found

    def letter(self, position: str) -> Steps[RemovedMessage | None]:
        """Return the dead letter at a position, with its payload."""
        (found,) = yield self._queue.run(script.LETTERS, "dead", position)
        return removed_message(found) if found else None

    def find(self, id: str) -> Steps[RemovedMessage | None]:
        """See `ShardedQueue.dead_letter`."""
        for position in (yield from self._positions([id]))[0]:
            if (found := (yield from self.letter(position))) is not None:
                return found
        return None

    def requeue(self, ids: Sequence[str]) -> Steps[list[str]]:
        """See `ShardedQueue.requeue_dead_letters`."""
        firsts = yield from self._first_positions(ids)
        heads = yield from self.heads_at([position for _, position in firsts])
        known = [(id, head) for (id, _), head in zip(firsts, heads, strict=True) if head]
        revived = yield from self.revive([head for _, head in known])
        return [id for (id, _), is_there in zip(known, revived, strict=True) if is_there]

    def delete(self, ids: Sequence[str]) -> Steps[list[str]]:
        """See `ShardedQueue.delete_dead_letters`."""
        firsts = yield from self._first_positions(ids)
        dropped = yield from self._drop([position for _, position in firsts])
        return [id for (id, _), was_there in zip(firsts, dropped, strict=True) if was_there]

    def revive(self, heads: Sequence[DeadLetterHead]) -> Steps[list[bool]]:
        """Write dead letters into the queue again and remove them. Return for each whether it was
        there."""
        replies: list[bool] = []
        for piece in _pieces(heads):
            arguments: list[Field] = []
            for head in piece:
                _, candidates = self._settings.shard(head.shard_key, None, None)
                arguments += (head.position, len(candidates), *candidates)
            replies += yield from self._revive(len(piece), arguments)
        return replies

    def _drop(self, positions: Sequence[str]) -> Steps[list[bool]]:
        """Remove dead letters. Return for each whether it was there."""
        replies: list[bool] = []
        for start in range(0, len(positions), MOST_MOVED):
            piece = positions[start : start + MOST_MOVED]
            arguments = [part for position in piece for part in (position, 0)]
            replies += yield from self._revive(len(piece), arguments)
        return replies

    def _revive(self, count: int, arguments: Sequence[Field]) -> Steps[list[bool]]:
        ttl = round(self._settings.ttl * 1000)
        replies = yield self._queue.run(
            script.REVIVE, self._settings.streams, ttl, count, *arguments
        )
        return [bool(reply) for reply in replies]

    def _positions(self, ids: Sequence[str]) -> Steps[list[list[str]]]:
        """Return for each id of a message the positions of its dead letters."""
        found: list[list[str]] = []
        while len(found) < len(ids):
            piece = ids[len(found) : len(found) + PAGE]
            replies = yield self._queue.run(script.NAMES, *piece)
            found += [[position.decode() for position in reply] for reply in replies]
        return found

    def _first_positions(self, ids: Sequence[str]) -> Steps[list[tuple[str, str]]]:
        """Return those ids that have a dead letter, each with the position of its first one."""
        positions = yield from self._positions(ids)
        return [(id, found[0]) for id, found in zip(ids, positions, strict=True) if found]


def _pieces(heads: Sequence[DeadLetterHead]) -> Iterator[list[DeadLetterHead]]:
    """Divide dead letters into pieces that one run of a script moves soon enough."""
    piece: list[DeadLetterHead] = []
    size = 0
    for head in heads:
        if piece and (len(piece) == MOST_MOVED or size + head.size > MOST_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(head)
        size += head.size
    if piece:
        yield piece
