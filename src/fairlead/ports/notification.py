"""Notifications: small messages about changes. A notification may be lost,
doubled or late; sweeps make that harmless."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fairlead.model import NewTask, Submitted, Trigger
from fairlead.model.fields import Micros, Partition, Priority, Seq
from fairlead.model.peer import PeerMessage, split
from fairlead.model.reading import json_reader


class Lane(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A lane with new triggers: one priority of one partition, from `first_seq` up."""

    queue: str
    partition: Partition
    priority: Priority
    first_seq: Seq


class Notification(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A message about changes; an empty one means that anything may have changed."""

    ready: list[Lane] = []
    """Lanes with new triggers."""
    due: Micros | None = None
    """Earliest time of a new WAITING task (microseconds since the epoch), for the due poller."""
    control: bool = False
    """Whether a person changed something, or a lease was released."""
    finished: list[str] = []
    """Ids of tasks whose kept result can be read now."""
    log: list[str] = []
    """Ordered queues whose task log has new entries."""
    triggers: list[Trigger] = []
    """Triggers of tasks in `ready`, as far as known, for a channel that carries triggers. Notifiers
    leave them out."""

    peer: PeerMessage | None = None
    """A message from one node to another; such a notification has nothing else."""

    @property
    def is_empty(self) -> bool:
        """Whether the notification means that anything may have changed."""
        return not (
            self.ready
            or self.due is not None
            or self.control
            or self.finished
            or self.log
            or self.peer is not None
        )


_read = json_reader(Notification)
encode = msgspec.json.Encoder().encode


def decode(message: str | bytes) -> Notification:
    """Return the notification in a message; ANY_CHANGE, never an error, if unreadable."""
    try:
        return _read(message)
    except msgspec.DecodeError:
        return ANY_CHANGE


ANY_CHANGE = Notification()


def joined(notifications: Sequence[Notification]) -> Notification:
    """Merge notifications of new tasks; each lane gets its lowest `first_seq`."""
    lanes: dict[tuple[str, int, int], int] = {}
    for lane in (lane for notification in notifications for lane in notification.ready):
        key = (lane.queue, lane.partition, lane.priority)
        lanes[key] = min(lane.first_seq, lanes.get(key, lane.first_seq))
    dues = [notification.due for notification in notifications if notification.due is not None]
    return Notification(
        ready=[Lane(*key, seq) for key, seq in sorted(lanes.items())], due=min(dues, default=None)
    )


def with_triggers(
    notification: Notification | None,
    tasks: Sequence[NewTask],
    submitted: Sequence[Submitted],
) -> Notification | None:
    """Return the notification of a submit with the triggers of those tasks that may run now and
    whose `seq` is known. Without a notification, the triggers are all there is to send."""
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
            seq=seq,
            order_at=0 if task.ordering_key is None else task.run_at,
        )
        for task, (_, is_new, seq) in zip(tasks, submitted, strict=True)
        if is_new and seq is not None
    ]
    if not triggers:
        return notification
    return msgspec.structs.replace(notification or Notification(), triggers=triggers)


def pieces(notification: Notification, most_bytes: int) -> list[bytes]:
    """Cut the notification into messages of at most `most_bytes` each; a part that cannot be cut
    small enough becomes ANY_CHANGE, or is dropped if it is a message between nodes."""
    whole = encode(notification)
    if len(whole) <= most_bytes:
        return [whole]
    if notification.peer is not None:
        cut = [Notification(peer=half) for half in split(notification.peer)]
        return [piece for part in cut for piece in pieces(part, most_bytes)]
    if len(notification.ready) + len(notification.finished) <= 1:
        return [encode(ANY_CHANGE)]
    # One rounds up and the other down, so that both halves are smaller than the whole.
    r, f = (len(notification.ready) + 1) // 2, len(notification.finished) // 2
    left = Notification(
        notification.ready[:r],
        notification.due,
        notification.control,
        notification.finished[:f],
        notification.log,
    )
    right = Notification(notification.ready[r:], None, False, notification.finished[f:])
    return pieces(left, most_bytes) + ([] if right.is_empty else pieces(right, most_bytes))
