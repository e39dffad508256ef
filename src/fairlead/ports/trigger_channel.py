"""The trigger channel: carries triggers to the nodes that own their partitions. At least once is
enough."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from fairlead.model import LaneKey, NewTask, PartitionKey, Submitted, Trigger
from fairlead.ports.notification import Wake


class Room(Protocol):
    """How many more triggers of a lane the node takes now."""

    def ahead(self, lane: LaneKey) -> int:
        """Of those not received before."""

    def behind(self, lane: LaneKey) -> int:
        """Of those that may have been received before, looked at again in case a wake was lost."""


class Owner(Protocol):
    """Who is told which partitions are this node's, by a channel that shares them out. Called in
    the event loop."""

    def gained(self, keys: Collection[PartitionKey]) -> None:
        """These are this node's too from now on."""

    async def hand_over(self, keys: Collection[PartitionKey]) -> None:
        """Stop with these: another node has them once this returns."""

    def lost(self, keys: Collection[PartitionKey]) -> None:
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
    """Those that nodes have, and have not grabbed."""
    oldest: float | None
    """Seconds since the oldest of them all was written; None: there are none."""


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
    orders: bool
    """It brings triggers in the order in which they are to run, each to any node: queues have no
    order of their own."""

    def check_queue(self, queue: QueueDeclaration) -> None:
        """Raise ConfigurationError for a queue whose order this channel cannot keep."""

    def check_tasks(self, tasks: Sequence[NewTask]) -> None:
        """Raise InvalidTask for the first task that this channel cannot bring as it was asked."""

    def carrying(
        self, wake: Wake, tasks: Sequence[NewTask], submitted: Sequence[Submitted]
    ) -> Wake:
        """Return the wake of a submit as this channel wants it: with the triggers of the tasks, or
        as it is."""

    def announce(self, wake: Wake) -> None:
        """Tell the nodes, after the commit, from any thread; never blocks for long, never raises: a
        lost wake is healed."""

    async def open(self, on_wake: Callable[[Wake], None]) -> None:
        """Start receiving; `on_wake` is called in the event loop for every wake that arrives."""

    def join(
        self, partitions: Mapping[str, int], node: str, owner: Owner, session_seconds: float
    ) -> None:
        """This node serves these queues (of so many partitions each); again whenever they change. A
        channel that shares partitions divides them among all nodes that have joined; one that was
        not heard of for `session_seconds` is taken for dead."""

    async def part(self) -> None:
        """Give up all partitions: the others have them once this returns."""

    def assign(self, partitions: Mapping[PartitionKey, Mapping[int, int]]) -> None:
        """From now on this node reads exactly these, each from the place given for its priority, or
        from the beginning. What it reads already goes on where it stands. Triggers already in the
        store will be received too."""

    def is_behind(self, lane: LaneKey) -> bool:
        """More triggers of the lane may be there than were received."""

    async def receive(self, room: Room) -> Sequence[Trigger]:
        """The next triggers of the owned partitions, for which there is room, a better priority
        first. Waits while there are none; answers nothing when a lane is no longer behind. A
        trigger may come twice."""

    def settled(self, triggers: Iterable[Trigger]) -> None:
        """These were grabbed, refused, or are kept elsewhere: the node does not need them from the
        channel again."""

    def room_freed(self) -> None:
        """The look-ahead has room again."""

    def look_again(self) -> None:
        """Triggers that were received may have been dropped: give them again, now."""

    async def close(self) -> None:
        """Stop receiving and let go of everything."""

    async def status(self, queues: Collection[str]) -> ChannelStatus | None:
        """How its servers and these queues are; None when it has no servers of its own. Raises
        StoreUnavailable."""

    def shut(self) -> None:
        """The application is closed: send what was announced, and let go."""
