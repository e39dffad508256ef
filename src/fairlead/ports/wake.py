"""Wakes: the small messages that tell nodes to look. They may be lost, doubled or late; sweeps make that harmless."""

from __future__ import annotations

import msgspec


class Lane(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where new triggers are: one priority of one partition, from `first_seq` up."""

    queue: str
    partition: int
    priority: int
    first_seq: int


class Wake(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What changed. An empty one means: look everywhere."""

    ready: list[Lane] = []
    """Lanes with new triggers."""
    due: int | None = None
    """A task waits for this instant (microseconds); the due poller may have to get up earlier."""
    control: bool = False
    """A person changed something: a pause, a cancelled task, a lease given up."""
    finished: list[str] = []
    """Tasks whose kept result can be read now."""

    @property
    def is_empty(self) -> bool:
        return not (self.ready or self.due is not None or self.control or self.finished)


_decoder = msgspec.json.Decoder(Wake)
encode = msgspec.json.Encoder().encode


def decode(message: str | bytes) -> Wake:
    """The wake in a message; one that cannot be read means "look everywhere", never an error."""
    try:
        return _decoder.decode(message)
    except msgspec.DecodeError:
        return LOOK_EVERYWHERE


LOOK_EVERYWHERE = Wake()


def pieces(wake: Wake, most_bytes: int) -> list[bytes]:
    """The wake as messages of at most `most_bytes` each; what cannot be cut small enough becomes "look everywhere"."""
    whole = encode(wake)
    if len(whole) <= most_bytes:
        return [whole]
    if len(wake.ready) + len(wake.finished) <= 1:
        return [encode(LOOK_EVERYWHERE)]
    r, f = (len(wake.ready) + 1) // 2, (len(wake.finished) + 1) // 2
    left = Wake(wake.ready[:r], wake.due, wake.control, wake.finished[:f])
    right = Wake(wake.ready[r:], None, False, wake.finished[f:])
    return pieces(left, most_bytes) + ([] if right.is_empty else pieces(right, most_bytes))
