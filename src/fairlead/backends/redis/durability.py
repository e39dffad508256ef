"""The risks of a Redis: data that it could lose, as its configuration says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from fairlead.backends.redis.sharded.clients import is_cluster
from fairlead.backends.redis.sharded.confirmation import Confirmation
from fairlead.backends.redis.sharded.redis_errors import translated_errors
from fairlead.ports.trigger_channel import Risk

_SETTINGS = (
    "maxmemory",
    "maxmemory-policy",
    "save",
    "appendonly",
    "appendfsync",
    "min-replicas-to-write",
)


class Durability(NamedTuple):
    """How a Redis keeps what it has acknowledged."""

    maxmemory: int
    """Bytes; 0 for no limit."""
    policy: str
    """Choice of the keys that Redis evicts at `maxmemory`; "noeviction" for none."""
    snapshots: str
    """When Redis writes snapshots; "" for never."""
    flushes: str
    """When Redis writes its log to disk: "always", "everysec" or "no"; "" if it has no log."""
    min_replicas: int
    """Replicas without which Redis refuses writes."""
    replicas: int
    """Replicas that are connected."""

    @classmethod
    def of(cls, settings: Mapping[str, str], replication: Mapping[str, Any]) -> Durability:
        """Read the responses to CONFIG GET and INFO."""
        return cls(
            int(settings.get("maxmemory", 0)),
            settings.get("maxmemory-policy", "noeviction"),
            settings.get("save", ""),
            settings.get("appendfsync", "") if settings.get("appendonly") == "yes" else "",
            int(settings.get("min-replicas-to-write", 0)),
            int(replication.get("connected_slaves", 0)),
        )

    def risks_of_triggers(self) -> list[Risk]:
        """Return the risks of a Redis that has only triggers, which rows restore."""
        if self.policy == "noeviction":
            return []
        return [self._eviction("a trigger whose message is evicted waits until its queue is empty")]

    def risks_of_tasks(self, confirmation: Confirmation | None) -> list[Risk]:
        """Return the risks of a Redis that has the tasks themselves."""
        found = []
        if self.policy != "noeviction":
            found.append(self._eviction("tasks that wait are lost"))
        if (lost := self._lost_by_crash()) is not None:
            found.append(Risk(lost, "set appendonly yes and appendfsync always", False))
        wanted = 0 if confirmation is None else confirmation.replicas
        if wanted > self.replicas:
            found.append(
                Risk(
                    f"wait_replicas={wanted}, but {_replicas(self.replicas)} connected: submits"
                    " raise NotReplicated",
                    "start the replicas, or lower wait_replicas in the URL",
                    True,
                )
            )
        elif not self.replicas:
            found.append(
                Risk(
                    "no replica is connected: the loss of the machine loses all tasks",
                    "add a replica, and wait_replicas=1 to the URL",
                    False,
                )
            )
        elif not wanted:
            found.append(self._unconfirmed())
        return found

    def _eviction(self, effect: str) -> Risk:
        if self.maxmemory:
            what = f"Redis evicts keys at its maxmemory (maxmemory-policy {self.policy}): {effect}"
        else:
            what = (
                f"maxmemory-policy is {self.policy}: if a maxmemory is set, Redis evicts keys, and"
                f" {effect}"
            )
        return Risk(what, "set maxmemory-policy noeviction", self.maxmemory > 0)

    def _lost_by_crash(self) -> str | None:
        if self.flushes == "always":
            return None
        if self.flushes == "everysec":
            return "Redis writes to disk each second: a crash of its machine loses the last submits"
        if self.flushes:
            return (
                "Redis leaves the writing of its log to the operating system: a crash of its"
                " machine loses the submits of half a minute"
            )
        if self.snapshots:
            return (
                f"Redis writes snapshots only (save {self.snapshots}): a crash loses all submits"
                " since the last one"
            )
        return "Redis writes nothing to disk: a restart loses all tasks"

    def _unconfirmed(self) -> Risk:
        what = (
            f"submits return before a replica has them ({_replicas(self.replicas)} connected): a"
            " failover loses the last ones"
        )
        if self.min_replicas:
            return Risk(what, "add wait_replicas=1 to the URL", False)
        return Risk(
            f"{what}, and a master that is cut off from them takes submits that are lost",
            "add wait_replicas=1 to the URL, and set min-replicas-to-write 1",
            False,
        )


async def risks(
    redis: Any, queue: str, has_tasks: bool, confirmation: Confirmation | None
) -> Sequence[Risk]:
    """Return what the server, or each server of the cluster, could lose. A configuration that may
    not be read is a risk too. Raise StoreUnavailable."""
    found: dict[Risk, None] = {}  # servers of a cluster mostly have the same
    with translated_errors(redis, queue):
        targets: list[dict[str, Any]] = [{}]
        if is_cluster(redis):
            await redis.initialize()
            targets = [{"target_nodes": node} for node in redis.get_primaries()]
        for target in targets:
            try:
                durability = await _read(redis, target)
            except ResponseError as error:
                reason = " ".join(str(error).split())[:100]
                refused = Risk(
                    f"the configuration of Redis cannot be read ({reason}), so what it could lose"
                    " is unknown",
                    "permit +config|get and +info, or check maxmemory-policy, appendonly and the"
                    " replicas by hand",
                    False,
                )
                found[refused] = None
                continue
            of_server = (
                durability.risks_of_tasks(confirmation)
                if has_tasks
                else durability.risks_of_triggers()
            )
            found |= dict.fromkeys(of_server)
    return list(found)


async def _read(redis: Any, target: Mapping[str, Any]) -> Durability:
    response = await redis.execute_command("CONFIG GET", *_SETTINGS, **target)
    settings = {_text(name): _text(value) for name, value in response.items()}
    return Durability.of(settings, await redis.execute_command("INFO", "replication", **target))


def _replicas(count: int) -> str:
    if count == 1:
        return "1 replica is"
    return f"{count or 'no'} replicas are"


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
