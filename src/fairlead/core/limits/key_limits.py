"""Limits of fairness keys that are set while a node runs: how many tasks of a key of a queue run at
once on it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fairlead.model import Trigger


class KeyLimit(msgspec.Struct, frozen=True):
    """What tasks of a key wait for that has as many running as it may."""

    queue: str
    fairness_key: str


class KeyLimits:
    """Counts what runs of every key, limited or not, so that a limit that comes later knows what
    runs already."""

    def __init__(self) -> None:
        self._limits: dict[str, dict[str, int]] = {}
        """By queue and fairness key; of a queue without limits there is nothing."""
        self._running: dict[tuple[str, str], int] = {}
        """By queue and fairness key, of those that have any."""
        self.has_any = False
        """Whether there is any limit: most nodes have none, and every task is asked about."""

    def of(self, trigger: Trigger) -> KeyLimit | None:
        """The limit of its key; None: it has none."""
        limits = self._limits.get(trigger.queue)
        if limits is None or trigger.fairness_key not in limits:
            return None
        return KeyLimit(trigger.queue, trigger.fairness_key)

    def full(self, trigger: Trigger) -> KeyLimit | None:
        """The limit that stops it now."""
        limits = self._limits.get(trigger.queue)
        if limits is None:
            return None
        key = trigger.fairness_key
        most = limits.get(key)
        if most is None or self._running.get((trigger.queue, key), 0) < most:
            return None
        return KeyLimit(trigger.queue, key)

    def acquire(self, trigger: Trigger) -> None:
        """It runs. The caller has seen that nothing is full."""
        key = (trigger.queue, trigger.fairness_key)
        self._running[key] = self._running.get(key, 0) + 1

    def release(self, trigger: Trigger) -> KeyLimit | None:
        """It runs no more; answers its limit if that has room again."""
        key = (trigger.queue, trigger.fairness_key)
        left = self._running[key] - 1
        if left:
            self._running[key] = left
        else:
            del self._running[key]  # as small as what runs
        if not self.has_any:
            return None
        limits = self._limits.get(trigger.queue)
        if limits is None or left >= limits.get(trigger.fairness_key, 0):
            return None
        return KeyLimit(*key)

    def running(self, queue: str, fairness_key: str) -> int:
        """How many of its tasks run now."""
        return self._running.get((queue, fairness_key), 0)

    def limits(self, queue: str) -> Mapping[str, int]:
        """Those of a queue, by fairness key."""
        return self._limits.get(queue, {})

    def set(self, queue: str, limits: Mapping[str, int]) -> list[KeyLimit]:
        """Have these in a queue, and no others; answers those that have room now. What runs goes
        on, also beyond a limit: then nothing of the key begins until fewer run."""
        self._limits.pop(queue, None)
        if limits:
            self._limits[queue] = dict(limits)
        self.has_any = bool(self._limits)
        return [
            KeyLimit(queue, key) for key, most in limits.items() if self.running(queue, key) < most
        ]
