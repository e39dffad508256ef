"""The trigger channel: carries triggers to the nodes that own their partitions. At least once is
enough."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from fairlead.model import LaneKey, NewTask, PartitionKey, Submitted, Trigger
from fairlead.ports.notification import Notification


class Room(Protocol):
    """How many more triggers of a lane the node takes now."""

    def ahead(self, lane: LaneKey) -> int:
        """Of those not received before."""

    def behind(self, lane: LaneKey) -> int:
        """Of those that may have been received before, looked at again in case a wake was lost."""


class Owner(Protocol):
    """Who is told which partitions are this node's, by a channel that shares them out. Called in
    the event loop."""

    def on_gained(self, keys: Collection[PartitionKey]) -> None:
        """These are this node's too from now on."""

    async def hand_over(self, keys: Collection[PartitionKey]) -> None:
        """Stop with these: another node has them once this returns."""

    def on_lost(self, keys: Collection[PartitionKey]) -> None:
        """Another node may have these already."""


class PartitionStatus(NamedTuple):
    """One partition as the channel sees it."""

    queue: str
    partition: int
    owner: str | None
    """The node that it was given to; None: nobody, right now."""
    lag: int
    """Messages that are not done with."""


class QueueLoad(NamedTuple):
    """What lies in a channel that brings tasks in an order of its own, for one queue."""

    queue: str
    waiting: int
    """Triggers that no node has."""
    held: int
    """Those that nodes have, and have not claimed."""
    oldest: float | None
    """Seconds since the oldest that waits was written; None: nothing waits."""


class ChannelStatus(NamedTuple):
    """What a channel with servers of its own says about itself."""

    servers: str
    """How they are, for people."""
    partitions: list[PartitionStatus]
    """Of the queues asked about, as far as they exist there."""
    loads: Sequence[QueueLoad] = ()
    """The same, of a channel that has no partitions."""


class QueueDeclaration(Protocol):
    """A declared queue, as far as a channel may be unable to serve it."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def order(self) -> str | None:
        """ "fair" or "fifo", where the application asks for one of them."""

    @property
    def cost(self) -> str:
        """What fairness keys have equal shares of: "tasks" or "runtime"."""


class TriggerChannel(Protocol):
    """One per application. `announce` is the submitter's side, the rest is the node's."""

    location: str
    """Where it is, without secrets."""
    carries_triggers: bool
    """Wakes of submits are to come with their triggers."""
    shares_partitions: bool
    """It says which partitions are whose; otherwise the coordinator's leases do."""
    decides_order: bool
    """It brings triggers in the order in which they are to run, each to any node: queues have no
    order of their own."""

    def check_queue(self, queue: QueueDeclaration) -> None:
        """Raise ConfigurationError for a queue whose order this channel cannot keep."""

    def check_tasks(self, tasks: Sequence[NewTask]) -> None:
        """Raise InvalidTask for the first task that this channel cannot bring as it was asked."""

    def carrying(
        self, notification: Notification, tasks: Sequence[NewTask], submitted: Sequence[Submitted]
    ) -> Notification:
        """Return the wake of a submit as this channel wants it: with the triggers of the tasks, or
        as it is."""

    def announce(self, notification: Notification) -> None:
        """Tell the nodes, after the commit, from any thread. Never block for long, never raise,
        also while a server is away. A lost announcement is healed by a sweep; one that comes twice,
        or tells of nothing, is harmless."""

    async def open(self, on_notification: Callable[[Notification], None]) -> None:
        """Start receiving; `on_wake` is called in the event loop for every wake that arrives. A
        closed channel can be opened again."""

    def join(
        self, partitions: Mapping[str, int], node: str, owner: Owner, session_seconds: float
    ) -> None:
        """Serve these queues (of so many partitions each) with this node; called again whenever
        they change. A channel that shares partitions divides them among all nodes that have joined;
        a node that was not heard of for `session_seconds` is taken for dead."""

    async def leave(self) -> None:
        """Give up all partitions and all triggers not claimed: other nodes have them once this
        returns. Safe to call more than once."""

    def assign(self, partitions: Mapping[PartitionKey, Mapping[int, int]]) -> None:
        """Read exactly these from now on, each from the place given for its priority, or from the
        beginning. A partition that is read already goes on where it stands. Triggers already in the
        store are received too. A channel that carries triggers may bring some from before the
        place."""

    def is_behind(self, lane: LaneKey) -> bool:
        """Return whether more triggers of the lane may be there than were received. A channel that
        decides the order need not know."""

    async def receive(self, room: Room) -> Sequence[Trigger]:
        """Return the next triggers of the owned partitions, for which there is room, a better
        priority first; those of a lane in the order of submission, unless the channel decides the
        order. Wait while there are none; return nothing when a lane is no longer behind. A lane
        without room holds up no other. A trigger may come twice; one that commits late, below what
        was received, comes too. Cancelling loses nothing. Raises StoreUnavailable, and goes on when
        it is called again."""

    def settled(self, triggers: Iterable[Trigger]) -> None:
        """Note that these were claimed, refused, or are kept elsewhere: the node does not need them
        from the channel again. Harmless for triggers that were settled before or never came."""

    def room_freed(self) -> None:
        """Note that the look-ahead has room again."""

    def redeliver(self) -> None:
        """Give again, now, the triggers that were received and may have been dropped. Nothing to do
        for a channel whose triggers stay claimed by the node that received them."""

    async def close(self) -> None:
        """Stop receiving and let go of everything; no wake is told after it. Safe to call more than
        once."""

    async def status(self, queues: Collection[str]) -> ChannelStatus | None:
        """Return how its servers and these queues are; None when it has no servers of its own.
        Raises StoreUnavailable."""

    def close_sender(self) -> None:
        """The application is closed: send what was announced, and let go."""
