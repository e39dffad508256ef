"""The sharded queue: a queue for many tenants on Redis streams, usable on its own. Needs the extra
`redis`."""

from fairlead.backends.redis.sharded.details import (
    ConsumerLoad,
    Details,
    ShardKeyLoad,
    StreamLoad,
)
from fairlead.backends.redis.sharded.errors import (
    Empty,
    InvalidMessage,
    QueueDamaged,
    UnknownMessage,
)
from fairlead.backends.redis.sharded.heartbeat import Heartbeat, SyncHeartbeat
from fairlead.backends.redis.sharded.message import (
    DeadLetterHead,
    Message,
    NewMessage,
    RemovedMessage,
)
from fairlead.backends.redis.sharded.queue import ShardedQueue
from fairlead.backends.redis.sharded.stats import Stats
from fairlead.backends.redis.sharded.sync_queue import SyncShardedQueue

__all__ = [
    "ConsumerLoad",
    "DeadLetterHead",
    "Details",
    "Empty",
    "Heartbeat",
    "InvalidMessage",
    "Message",
    "NewMessage",
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
