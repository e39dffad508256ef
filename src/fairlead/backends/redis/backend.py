"""The backend of `redis://host:6379/0`: a channel for tasks in a SQL database, or a store of
tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fairlead.errors import ConfigurationError
from fairlead.ports.backend import Backend, BackendContext, Kind
from fairlead.ports.backlog_store import BacklogStore
from fairlead.ports.coordinator import Coordinator
from fairlead.ports.notifier import Notifier
from fairlead.ports.task_store import TaskStore
from fairlead.ports.trigger_channel import TriggerChannel

_EXAMPLE = "redis://host:6379/0"


class RedisBackend(Backend):
    """A backend for triggers, or for tasks. A store on Redis brings its own channel and order."""

    offers: ClassVar[Mapping[Kind, str]] = {"store": _EXAMPLE, "channel": _EXAMPLE}
    modules = ("redis",)
    install = "fairlead[redis]"

    def check(self, urls: Mapping[str, str]) -> None:
        for name, url in urls.items():
            if name != "coordinator":
                raise ConfigurationError(
                    f"{name}={url!r}: tasks on Redis need no {name}; leave it out"
                )

    def store(self, url: str) -> TaskStore:
        from fairlead.backends.redis.sharded.endpoint import RedisEndpoint
        from fairlead.backends.redis.task_store import RedisTaskStore

        return RedisTaskStore(RedisEndpoint.of(url))

    def notifier(self, url: str | None, store: object) -> Notifier | None:
        from fairlead.backends.memory.notifier import MemoryNotifier

        return MemoryNotifier() if url is None else None

    def channel(self, url: str | None, context: BackendContext) -> TriggerChannel:
        if url is not None:
            from fairlead.backends.redis.channel import RedisChannel

            return RedisChannel(
                url, tasks_of(context), context.notifier, context.counted, context.clock
            )
        from fairlead.backends.redis.task_channel import RedisTaskChannel
        from fairlead.backends.redis.task_store import MOST_LOST, RedisTaskStore

        assert isinstance(context.store, RedisTaskStore)
        return RedisTaskChannel(
            context.store.endpoint,
            context.store,
            context.notifier,
            context.counted,
            MOST_LOST,
            context.clock,
        )

    def coordinator(self, url: str | None, context: BackendContext) -> Coordinator:
        from fairlead.backends.redis.coordinator import NoCoordinator

        return NoCoordinator()

    def backlog(self, url: str | None, context: BackendContext) -> BacklogStore:
        from fairlead.backends.memory.backlog import MemoryBacklogStore

        return MemoryBacklogStore()


def tasks_of(context: BackendContext) -> TaskStore:
    """Return the task store."""
    tasks = context.store.with_tasks()
    assert tasks is not None
    return tasks
