"""A queue on Redis streams for many tenants that stands on its own. Needs the extra `redis`."""

from fairlead.sharded.errors import Empty, InvalidMessage, QueueDamaged, UnknownMessage
from fairlead.sharded.message import Message, NewMessage, SetAside
from fairlead.sharded.queue import ShardedQueue
from fairlead.sharded.stats import Stats
from fairlead.sharded.sync_queue import SyncShardedQueue

__all__ = [
    "Empty",
    "InvalidMessage",
    "Message",
    "NewMessage",
    "QueueDamaged",
    "SetAside",
    "ShardedQueue",
    "Stats",
    "SyncShardedQueue",
    "UnknownMessage",
]
