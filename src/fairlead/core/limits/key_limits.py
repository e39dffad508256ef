"""Limits of fairness keys, set while a node runs: how many tasks of a key of a queue run at once on
this node."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fairlead.model import Trigger


class KeyLimit(msgspec.Struct, frozen=True):
    """Identity of the limit of a fairness key."""

    queue: str
    fairness_key: str


class KeyLimits:
    """Limits of fairness keys. Counts the running tasks of every key, limited or not, so that a new
    limit includes tasks that run already."""

    def __init__(self) -> None:
        self._limits: dict[str, dict[str, int]] = {}
        """Limits by queue and fairness key; queues without limits are absent."""
        self._running: dict[tuple[str, str], int] = {}
        """Number of running tasks by queue and fairness key, where there are any."""
        self.has_any = False
        """Whether there is any limit; checked first, because most nodes have none."""

    def of(self, trigger: Trigger) -> KeyLimit | None:
        """Return the limit of the trigger's fairness key; None if it has none."""
        limits = self._limits.get(trigger.queue)
        if limits is None or trigger.fairness_key not in limits:
            return None
        return KeyLimit(trigger.queue, trigger.fairness_key)

    def full(self, trigger: Trigger) -> KeyLimit | None:
        """Return the limit if it stops the trigger now."""
        limits = self._limits.get(trigger.queue)
        if limits is None:
            return None
        key = trigger.fairness_key
        most = limits.get(key)
        if most is None or self._running.get((trigger.queue, key), 0) < most:
            return None
        return KeyLimit(trigger.queue, key)

    def acquire(self, trigger: Trigger) -> None:
        """Count a task that starts. The caller has checked `full`."""
        key = (trigger.queue, trigger.fairness_key)
        self._running[key] = self._running.get(key, 0) + 1

    def release(self, trigger: Trigger) -> KeyLimit | None:
        """Count a task that ended; return its limit if that has room again."""
        key = (trigger.queue, trigger.fairness_key)
        left = self._running[key] - 1
        if left:
            self._running[key] = left
        else:
            del self._running[key]  # keeps the size of the dict to the keys that run
        if not self.has_any:
            return None
        limits = self._limits.get(trigger.queue)
        if limits is None or left >= limits.get(trigger.fairness_key, 0):
            return None
        return KeyLimit(*key)

    def running(self, queue: str, fairness_key: str) -> int:
        """Return how many tasks of the key run now."""
        return self._running.get((queue, fairness_key), 0)

    def limits(self, queue: str) -> Mapping[str, int]:
        """Return the limits of a queue, by fairness key."""
        return self._limits.get(queue, {})

    def set(self, queue: str, limits: Mapping[str, int]) -> list[KeyLimit]:
        """Replace the limits of a queue; return those that have room now. Running tasks continue,
        even beyond a limit: then no task of the key starts until fewer run."""
        self._limits.pop(queue, None)
        if limits:
            self._limits[queue] = dict(limits)
        self.has_any = bool(self._limits)
        return [
            KeyLimit(queue, key) for key, most in limits.items() if self.running(queue, key) < most
        ]
