"""Wakes: the small messages that tell nodes to look. They may be lost, doubled or late; sweeps make
that harmless."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fairlead.model import NewTask, Submitted, Trigger


class Lane(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where new triggers are: one priority of one partition, from `first_seq` up."""

    queue: str
    partition: int
    priority: int
    first_seq: int


class Notification(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What changed. An empty one means: look everywhere."""

    ready: list[Lane] = []
    """Lanes with new triggers."""
    due: int | None = None
    """A task waits for this instant (microseconds); the due poller may have to get up earlier."""
    control: bool = False
    """A person changed something: a pause, a cancelled task, a lease given up."""
    finished: list[str] = []
    """Tasks whose kept result can be read now."""
    log: list[str] = []
    """Ordered queues whose task log has more."""
    triggers: list[Trigger] = []
    """Of tasks in `ready`, as far as known; for a channel that carries triggers. Bells do not ring
    them."""

    @property
    def is_empty(self) -> bool:
        return not (self.ready or self.due is not None or self.control or self.finished or self.log)


_decoder = msgspec.json.Decoder(Notification)
encode = msgspec.json.Encoder().encode


def decode(message: str | bytes) -> Notification:
    """The wake in a message; one that cannot be read means "look everywhere", never an error."""
    try:
        return _decoder.decode(message)
    except msgspec.DecodeError:
        return LOOK_EVERYWHERE


LOOK_EVERYWHERE = Notification()


def joined(notifications: Sequence[Notification]) -> Notification:
    """One wake for all of new tasks: each lane from the first place that any of them names."""
    lanes: dict[tuple[str, int, int], int] = {}
    for lane in (lane for notification in notifications for lane in notification.ready):
        key = (lane.queue, lane.partition, lane.priority)
        lanes[key] = min(lane.first_seq, lanes.get(key, lane.first_seq))
    dues = [notification.due for notification in notifications if notification.due is not None]
    return Notification(
        ready=[Lane(*key, seq) for key, seq in sorted(lanes.items())], due=min(dues, default=None)
    )


def with_triggers(
    notification: Notification,
    tasks: Sequence[NewTask],
    submitted: Sequence[Submitted],
    placed_only: bool = True,
) -> Notification:
    """The wake of a submit, and the triggers of its tasks that may run now. `placed_only`: of those
    whose places are known."""
    triggers = [
        Trigger(
            task.id,
            1,
            task.queue,
            task.partition,
            task.name,
            task.priority,
            task.fairness_key,
            task.weight,
            task.ordering_key,
            seq=seq or 0,
            order_at=0 if task.ordering_key is None else task.run_at,
        )
        for task, (_, is_new, seq) in zip(tasks, submitted, strict=True)
        if is_new and (seq is not None or (task.is_due and not placed_only))
    ]
    return msgspec.structs.replace(notification, triggers=triggers) if triggers else notification


def pieces(notification: Notification, most_bytes: int) -> list[bytes]:
    """The wake as messages of at most `most_bytes` each; what cannot be cut small enough becomes
    "look everywhere"."""
    whole = encode(notification)
    if len(whole) <= most_bytes:
        return [whole]
    if len(notification.ready) + len(notification.finished) <= 1:
        return [encode(LOOK_EVERYWHERE)]
    r, f = (len(notification.ready) + 1) // 2, (len(notification.finished) + 1) // 2
    left = Notification(
        notification.ready[:r],
        notification.due,
        notification.control,
        notification.finished[:f],
        notification.log,
    )
    right = Notification(notification.ready[r:], None, False, notification.finished[f:])
    return pieces(left, most_bytes) + ([] if right.is_empty else pieces(right, most_bytes))
