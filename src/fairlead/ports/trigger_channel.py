"""The trigger channel: carries triggers, at least once, to the nodes that own their partitions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from fairlead.model import Feed, LaneKey, NewTask, PartitionKey, Submitted, Trigger
from fairlead.model.peer import PeerMessage
from fairlead.ports.notification import Notification


class KeyNews(NamedTuple):
    """News of a channel about the fairness keys of a long lane."""

    announced: Sequence[str] = ()
    """Keys of new triggers."""
    found: Sequence[Feed] = ()
    """Other feeds with unread triggers."""
    unread: int = 0
    """Number of tenants with unread triggers."""
    planned: int = 0
    """Number of triggers that the room has chosen and the channel has not read yet."""


class Room(Protocol):
    """Number of further triggers of a lane that the node takes now."""

    def ahead(self, lane: LaneKey) -> int:
        """Return the room for triggers not received before."""

    def behind(self, lane: LaneKey) -> int:
        """Return the room for triggers that may have been received before. The channel reads them
        again in case a notification was lost."""

    def reads_by_key(self, lane: LaneKey) -> bool:
        """Return whether a long lane is read by fairness key; else in the order of arrival."""

    def choose_keys(self, lane: LaneKey, news: KeyNews) -> Sequence[tuple[Feed, int]]:
        """Return which feeds to read next, and how many triggers of each at most. Feeds that are
        not returned are remembered and returned later, so the channel names each feed once, and
        again after it was returned if it has more unread triggers. The room is not asked again
        before it was freed, unless there is news. In a lane that is read in the order of arrival,
        the feeds have no keys: that of one name is read apart from that of all others."""


class Owner(Protocol):
    """A node that a channel gives partitions to. The channel calls it in the event loop."""

    def on_gained(self, keys: Collection[PartitionKey]) -> None:
        """Add these partitions to those of this node."""

    async def hand_over(self, keys: Collection[PartitionKey]) -> None:
        """Stop serving these partitions: another node gets them once this returns."""

    def on_lost(self, keys: Collection[PartitionKey]) -> None:
        """Drop these partitions, which another node may serve already."""


class PartitionStatus(NamedTuple):
    """Status of one partition in the channel."""

    queue: str
    partition: int
    owner: str | None
    """Node that the channel gave the partition to; None if there is none right now."""
    lag: int
    """Messages that are not yet processed."""


class ChannelStatus(NamedTuple):
    """Status of a channel with servers of its own."""

    servers: str
    """Health of the servers, for people."""
    partitions: list[PartitionStatus]
    """Partitions of the queues in question that exist in the channel."""


class TriggerChannel(Protocol):
    """The channel of an application. `announce` is for submitters, the rest is for nodes."""

    location: str
    """Name of the channel for messages, without secrets."""
    shares_partitions: bool
    """Whether the channel divides partitions among nodes; if not, leases of the coordinator do."""

    def carrying(
        self,
        notification: Notification | None,
        tasks: Sequence[NewTask],
        submitted: Sequence[Submitted],
    ) -> Notification | None:
        """Return the notification of a submit in the form this channel sends: with the triggers of
        the tasks, or unchanged. None: there is nothing to send."""

    def announce(self, notification: Notification) -> None:
        """Notify the nodes, after the commit, from any thread. Never blocks for long and never
        raises, even while a server is unavailable. A sweep heals a lost announcement; a doubled or
        empty one is harmless."""

    def send(self, message: PeerMessage) -> None:
        """Send a message to its recipient, or to all nodes that have opened this channel, from the
        event loop. A message may be lost; a message to all comes to the sender too. Never blocks,
        never raises."""

    async def open(self, on_notification: Callable[[Notification], None], node: str) -> None:
        """Start receiving as `node`; call `on_notification` in the event loop for every
        notification that arrives. A closed channel can be opened again."""

    def join(
        self, partitions: Mapping[str, int], node: str, owner: Owner, session_seconds: float
    ) -> None:
        """Serve these queues (by number of partitions) on this node; called again whenever they
        change. A channel that shares partitions divides them among all nodes that have joined and
        takes a node for dead that was silent for `session_seconds`."""

    async def leave(self) -> None:
        """Leave the group: release all partitions and all triggers not claimed. Other nodes can
        receive them once this returns. Safe to call more than once."""

    def assign(self, partitions: Mapping[PartitionKey, Mapping[int, int]]) -> None:
        """Read exactly these partitions from now on, each priority from the given position, or from
        the beginning. A partition that is being read continues at its present position. Triggers
        already in the store are received too. A channel that carries triggers may deliver some from
        before the position."""

    def is_behind(self, lane: LaneKey) -> bool:
        """Return whether the lane may have more triggers than were received; in a lane that is read
        by fairness key, more that there is room for."""

    async def receive(self, room: Room) -> Sequence[Trigger]:
        """Return the next triggers of the owned partitions that have room, better priorities first.
        Those of a lane come in the order of submission, or those of each of its fairness keys if
        `room.reads_by_key` says so. Wait while there are none; return nothing when a lane is no
        longer behind. A lane without room delays no other. A trigger may come twice. A trigger that
        commits late comes too, although its position is below those received. Cancelling loses
        nothing. Raises StoreUnavailable; call again to continue."""

    def settled(self, triggers: Iterable[Trigger]) -> None:
        """Record that these triggers were claimed, refused or stored elsewhere, so that the node
        does not need them again. Harmless for triggers that were settled before or never came."""

    def read_later(self, lane: LaneKey, feeds: Mapping[Feed, int]) -> None:
        """Deliver the triggers of a lane's feeds above these positions again, when the room asks
        for these feeds, or has room if the lane is read in the order of arrival."""

    def read_together(self, lane: LaneKey) -> None:
        """Read the triggers of all names of a lane together again."""

    def room_freed(self, lane: LaneKey | None = None) -> None:
        """Go on with a lane, or with all of them, that waited for room in the look-ahead."""

    def redeliver(self) -> None:
        """Deliver again, now, the triggers that were received and may have been dropped."""

    async def close(self) -> None:
        """Stop receiving and close everything; no notification arrives afterwards. Safe to call
        more than once."""

    async def status(self, queues: Collection[str]) -> ChannelStatus | None:
        """Return the status of the channel's servers and of these queues; None if it has no servers
        of its own. Raises StoreUnavailable."""

    def close_sender(self) -> None:
        """Send the notifications announced so far, then close what submitters use; called when the
        application closes."""
