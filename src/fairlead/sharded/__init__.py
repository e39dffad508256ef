"""The sharded queue: a queue for many tenants on Redis streams, usable on its own. Needs the extra
`redis`."""

from fairlead.sharded.details import (
    ConsumerLoad,
    Details,
    ShardKeyLoad,
    StreamLoad,
)
from fairlead.sharded.errors import (
    Empty,
    InvalidMessage,
    NotReplicated,
    QueueDamaged,
    UnknownMessage,
)
from fairlead.sharded.heartbeat import Heartbeat, SyncHeartbeat
from fairlead.sharded.message import (
    DeadLetterHead,
    Message,
    NewMessage,
    RemovedMessage,
)
from fairlead.sharded.queue import ShardedQueue
from fairlead.sharded.stats import Stats
from fairlead.sharded.sync_queue import SyncShardedQueue

__all__ = [
    "ConsumerLoad",
    "DeadLetterHead",
    "Details",
    "Empty",
    "Heartbeat",
    "InvalidMessage",
    "Message",
    "NewMessage",
    "NotReplicated",
    "QueueDamaged",
    "RemovedMessage",
    "ShardKeyLoad",
    "ShardedQueue",
    "Stats",
    "StreamLoad",
    "SyncHeartbeat",
    "SyncShardedQueue",
    "UnknownMessage",
]
