"""Liveness: how nodes notice that a node is dead or hangs, and the timers of each way.

| what ends or stops | sign for the others | after seconds | module |
|---|---|---|---|
| a process | its lock is free (`ports/presence.py`) | 2 at most | `deaths` |
| a node hangs, or is cut off | no heartbeat: its tasks resume | SILENT_SECONDS | `membership` |
| the same | no renewal: its partitions are free | LEASE_SECONDS | `ownership` |
| the same | no renewal: its permits are free | PERMIT_SECONDS | `cluster_limits` |
| a handler blocks the event loop | none: a thread renews all | BLOCKED_SECONDS | `blocked_loop` |

A node that hangs cannot know what the others did meanwhile. Therefore no run starts after the
`Expiry` of its lease or heartbeat, and a watchdog kills a worker whose permits expire.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from fairlead.clock import MICROS, Clock
from fairlead.ports.cluster import NodeRecord

HEARTBEAT_SECONDS = 2.5
"""Seconds between two heartbeats, and between two renewals of a node whose loop is blocked."""

SILENT_SECONDS = 10.0
"""Seconds without a heartbeat after which other nodes treat a node as dead."""

AHEAD_SECONDS = SILENT_SECONDS / 2
"""Seconds in the future from which on a heartbeat means that its node will restart. A smaller
difference may come from the clocks of the nodes."""

FRESH_SECONDS = SILENT_SECONDS / 2
"""Seconds for which the knowledge that a node is dead is acted on: after a longer pause of this
process, the node may be back."""

RETRY_SECONDS = 0.5
"""Seconds between two tries of a heartbeat while the store is unavailable. After an outage a living
node must send one before another node takes its free lock for its death."""

LEASE_SECONDS = 10.0
"""Seconds for which a node owns partitions without a renewal."""

RENEWALS = 4
"""Renewals of a lease while it lasts."""

PERMIT_SECONDS = 15.0
"""Seconds for which permits of cluster-wide limits may be used without a renewal."""

LOST_SECONDS = 1.0
"""Seconds between two rounds of the elected node that resumes the tasks of silent nodes."""

SUSPECT_EVERY = 0.25
"""Seconds between two checks while the lock of a node is free; `Presence.check_seconds` while none
is."""

START_PAUSE = 0.5
"""Seconds without a check after the start where the locks need the store: a living node whose
connections have just ended connects again, or sends its next heartbeat."""

PATIENCE = 1.0
"""Seconds for which a node waits for each living node between it and a dead one. That node sees the
death too, and two nodes that free the same tasks at once would disturb each other."""

BLOCKED_SECONDS = 2.0
"""Seconds without a response of the event loop after which it counts as blocked."""

RENEWAL_TIMEOUT = 5.0
"""Seconds for one heartbeat or renewal of a node whose loop is blocked."""

assert 3 * HEARTBEAT_SECONDS < SILENT_SECONDS, "two lost heartbeats are no death"
assert min(SILENT_SECONDS, LEASE_SECONDS) > HEARTBEAT_SECONDS + BLOCKED_SECONDS + RENEWAL_TIMEOUT
assert START_PAUSE >= RETRY_SECONDS, "a living node sends a heartbeat first"

_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Expiry:
    """Instant from which other nodes may take what this node holds: its leases, or the tasks that
    it has claimed. Time passes also while the process is stopped and while the machine is
    suspended. Any thread may use it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.at = 0.0
        """Seconds of `now`; the node holds nothing before its first renewal."""

    def now(self) -> float:
        """Return the seconds on a monotonic clock that counts suspensions of the machine."""
        suspended = time.clock_gettime(_BOOT_TIME) - time.monotonic()
        return self._clock.monotonic() + int(suspended)

    def is_ahead(self) -> bool:
        """Return whether the node certainly holds what it had at the last renewal."""
        return self.now() < self.at

    def extend(self, began: float, seconds: float) -> None:
        """Record a renewal for some seconds, which was requested at `began` (seconds of `now`)."""
        self.at = max(self.at, began + seconds)


class Silence:
    """Judge which nodes are silent, by the clock of the store."""

    _LEAST_STEP = MICROS
    """Microseconds; smaller steps of the clock do not matter here."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offsets: tuple[int, int] | None = None
        """Least and greatest possible offset of the store's clock from the monotonic clock, in
        microseconds, at the last heartbeat."""
        self.has_begun = False
        """Whether nodes were silent at the last heartbeat."""
        self.doubt()

    def doubt(self) -> None:
        """Judge no node for SILENT_SECONDS: after an outage the others have been as silent as this
        node, and heartbeats from before a step of the clock say nothing."""
        self._judge_from = self._clock.monotonic() + SILENT_SECONDS

    def observe(self, at: int, began: float) -> None:
        """Note the time of the store's clock (microseconds since the epoch) at a heartbeat that
        began at `began` (monotonic seconds). Find steps of that clock: a time server set it, its
        machine was suspended, or another server took over."""
        now = self._clock.monotonic()
        least, most = at - round(now * MICROS), at - round(began * MICROS)
        if self._offsets is not None and (
            least > self._offsets[1] + self._LEAST_STEP
            or most < self._offsets[0] - self._LEAST_STEP
        ):
            self.doubt()
        self._offsets = (least, most)

    def among(self, nodes: Sequence[NodeRecord], node: str) -> list[str]:
        """Return which nodes are silent. `nodes`: read with the last heartbeat of `node`, whose
        time is that of the store's clock."""
        own = {each.heartbeat_at for each in nodes if each.node == node}
        late = max(own, default=0) - round(SILENT_SECONDS * MICROS)
        silent = [each.node for each in nodes if each.heartbeat_at < late]
        self.has_begun = bool(silent)
        return silent

    def can_judge(self, began: float) -> bool:
        """Return whether the silent nodes count as dead. `began`: monotonic seconds at which the
        heartbeat began that has read them; after a long pause of this process they may be back."""
        now = self._clock.monotonic()
        return now >= self._judge_from and now - began <= FRESH_SECONDS
