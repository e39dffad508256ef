"""The dead letters of a sharded queue, by an index of small heads; a payload is read only on
demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

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

MOST_SEARCHED = 200
"""Heads that one run of a script looks at, at most, to find those that meet conditions."""

MOST_MOVED = 50
"""Dead letters that one run of a script writes again or removes, at most."""


class Place(NamedTuple):
    """Where a dead letter is."""

    section: str
    """The section of the queue; "" for a queue without sections."""
    position: str


class Revival(NamedTuple):
    """A dead letter to be written into its queue again."""

    head: DeadLetterHead
    replaced: Sequence[Field] = ()
    """Fields and values that replace those of the letter."""
    omitted: Sequence[str] = ()
    """Names of fields that the message does not get."""


class Condition(NamedTuple):
    """A text that one of these fields of a head must have, unless the head has none of them."""

    text: bytes
    """In lower case, if the case of letters does not count."""
    is_exact: bool
    """Whether the case of ASCII letters counts."""
    fields: Sequence[str]


class DeadLetterSteps:
    """The operations on the dead letters of one queue or section."""

    def __init__(self, queue: QueueSteps) -> None:
        self._queue = queue
        self._settings = queue.settings

    def page(self, after: str, count: int = PAGE) -> Steps[list[DeadLetterHead]]:
        """Return at most `count` heads after a position ("" for the first page), oldest first."""
        found = yield self._queue.run(script.HEADS, after, min(count, PAGE))
        return [letter_head(entry) for entry in found]

    def heads(self, count: int, after: str) -> Steps[list[DeadLetterHead]]:
        """See `ShardedQueue.dead_letter_heads`."""
        found: list[DeadLetterHead] = []
        while len(found) < count:
            page = yield from self.page(after, count - len(found))
            found += page
            if not page:
                break
            after = page[-1].position
        return found

    def places(self, names: Sequence[str]) -> Steps[list[list[Place]]]:
        """Return for each name the places of the dead letters with it, in all sections."""
        found: list[list[Place]] = []
        while len(found) < len(names):
            piece = names[len(found) : len(found) + PAGE]
            replies = yield self._queue.run(script.NAMES, *piece)
            found += [[_place(each) for each in reply] for reply in replies]
        return found

    def search(
        self, shard_key: str | None, conditions: Sequence[Condition], begin_at: bytes, count: int
    ) -> Steps[tuple[bytes, list[tuple[Place, DeadLetterHead]]]]:
        """Look at some hundreds of dead letters of all sections, in the order of their names, and
        return at most `count` heads that may meet all conditions, and where the next search
        begins; b"" at the end.

        `shard_key`: look only at the letters of this shard key. `begin_at`: what the search before
        returned, or a name and "!" to look at the letters after it."""
        arguments: list[Field] = []
        for text, is_exact, fields in conditions:
            arguments += (text, int(is_exact), len(fields), *fields)
        most = MOST_SEARCHED if conditions else min(MOST_SEARCHED, count)
        key = (0, "") if shard_key is None else (1, shard_key)
        next_one, *found = yield self._queue.run(
            script.FIND, *key, begin_at, most, min(count, MOST_SEARCHED), *arguments
        )
        pairs = zip(map(_place, found[::2]), map(letter_head, found[1::2]), strict=True)
        return next_one, list(pairs)

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

    def find(self, name: str) -> Steps[RemovedMessage | None]:
        """See `ShardedQueue.dead_letter`."""
        for position in (yield from self._positions([name]))[0]:
            if (found := (yield from self.letter(position))) is not None:
                return found
        return None

    def requeue(self, names: Sequence[str]) -> Steps[list[str]]:
        """See `ShardedQueue.requeue_dead_letters`."""
        firsts = [found[0] if found else None for found in (yield from self._positions(names))]
        found = yield from self.heads_at([position for position in firsts if position is not None])
        heads = iter(found)
        known = [
            (name, head)
            for name, position in zip(names, firsts, strict=True)
            if position is not None and (head := next(heads)) is not None
        ]
        revived = yield from self.revive([Revival(head) for _, head in known])
        return [name for (name, _), is_there in zip(known, revived, strict=True) if is_there]

    def delete(self, names: Sequence[str]) -> Steps[list[str]]:
        """See `ShardedQueue.delete_dead_letters`."""
        places = yield from self._positions(names)
        pairs = [
            (name, position)
            for name, found in zip(names, places, strict=True)
            for position in found[:1]
        ]
        dropped = yield from self.drop([position for _, position in pairs])
        return [name for (name, _), was_there in zip(pairs, dropped, strict=True) if was_there]

    def revive(self, revivals: Sequence[Revival]) -> Steps[list[bool]]:
        """Write dead letters into the queue again and remove them. Return for each whether it was
        there."""
        replies: list[bool] = []
        for piece in _pieces(revivals):
            arguments: list[Field] = []
            for head, replaced, omitted in piece:
                _, candidates = self._settings.shard(head.shard_key, None, None)
                arguments += (head.position, len(candidates), *candidates)
                arguments += (len(replaced), *replaced, len(omitted), *omitted)
            replies += yield from self._revive(len(piece), arguments)
        return replies

    def drop(self, positions: Sequence[str]) -> Steps[list[bool]]:
        """Remove dead letters. Return for each whether it was there."""
        replies: list[bool] = []
        for start in range(0, len(positions), MOST_MOVED):
            piece = positions[start : start + MOST_MOVED]
            arguments = [part for position in piece for part in (position, 0, 0, 0)]
            replies += yield from self._revive(len(piece), arguments)
        return replies

    def _revive(self, count: int, arguments: Sequence[Field]) -> Steps[list[bool]]:
        ttl = round(self._settings.ttl * 1000)
        replies = yield self._queue.run(
            script.REVIVE, self._settings.streams, ttl, count, *arguments
        )
        return [bool(reply) for reply in replies]

    def _positions(self, names: Sequence[str]) -> Steps[list[list[str]]]:
        """Return for each name the positions of its dead letters in this section."""
        return [
            [place.position for place in found if place.section == self._settings.section]
            for found in (yield from self.places(names))
        ]


def _place(found: bytes) -> Place:
    section, _, position = found.decode().rpartition("/")
    return Place(section, position)


def _pieces(revivals: Sequence[Revival]) -> Iterator[list[Revival]]:
    """Divide dead letters into pieces that one run of a script moves soon enough."""
    piece: list[Revival] = []
    size = 0
    for revival in revivals:
        if piece and (len(piece) == MOST_MOVED or size + revival.head.size > MOST_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(revival)
        size += revival.head.size
    if piece:
        yield piece
