"""The watch of each queue (see `watch`) as a stateful operator of Spark.

RocksDB keeps one state for each queue and one row for each fairness key of the queue. The state is
bounded: the last minute and open alerts of a queue, and the keys with tasks within
`forget_seconds`. Spark waits ten seconds for a worker that imports this module, so keep its
imports few.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from fairlead.pipeline.incidents.heartbeat import decode
from fairlead.pipeline.incidents.watch import ALL, Alert, KeyMinutes, Rules, Watched, observe

ALERT_SCHEMA = (
    "store_id string, kind string, queue string, subject string, start bigint, at bigint, is_over"
    " boolean, tasks bigint"
)
_MINUTES_SCHEMA = "minute bigint, tasks bigint, before bigint, mean double, known int"


class Watch(StatefulProcessor):
    """Watch of one group (store, queue)."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state; Spark calls this in each task."""
        self._handle = handle
        # Store JSON, so that a later version can add fields.
        self._watched = handle.getValueState("watched", "json string")
        self._silence = handle.getValueState("silence", "until_ms bigint, raised_at bigint")
        self._keys = handle.getMapState(
            "keys",
            "fairness_key string",
            _MINUTES_SCHEMA,
            round(self._rules.forget_seconds * 1000),
        )

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803 - Spark's
        """Handle new heartbeats of the queue."""
        store_id, queue = key
        arrived = sorted((row["kafka_offset"], row["heartbeat"]) for row in rows)
        heartbeats = [decode(heartbeat) for _, heartbeat in arrived]
        found = self._watched.get()
        if found is None:
            watched = Watched(since=heartbeats[0].at, relay=heartbeats[0].relay)
        else:
            watched = msgspec.json.decode(found[0], type=Watched)
        before, keys = (watched.relay, watched.up), dict[str, KeyMinutes]()
        for name in {name for heartbeat in heartbeats for name in heartbeat.keys}:
            if self._keys.containsKey((name,)) and (stored := self._keys.getValue((name,))):
                keys[name] = KeyMinutes(*stored)
        raised = observe(watched, heartbeats, keys, self._rules.of(queue))
        for name, minutes in keys.items():
            self._keys.updateValue((name,), msgspec.structs.astuple(minutes))
        self._watched.update((msgspec.json.encode(watched).decode(),))
        if (watched.relay, watched.up) != before:  # heartbeats that do not count do not end it
            now_ms = timerValues.getCurrentProcessingTimeInMs()
            raised += self._end_silence(queue, now_ms, watched.last_seen)
        yield from (_row(store_id, alert) for alert in raised)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Row]:
        """Raise the alert that the queue sends no heartbeats."""
        store_id, queue = key
        (found,) = self._watched.get() or ("",)
        last = msgspec.json.decode(found, type=Watched).last_seen
        self._silence.update((0, last))
        # The clock of the relay may be ahead of the one here.
        at = max(last, timerValues.getCurrentProcessingTimeInMs() * 1000)
        yield _row(store_id, Alert("silence", queue, ALL, last, at))

    def close(self) -> None:
        """Close nothing; Spark calls this at the end of a task."""

    def _end_silence(self, queue: str, now_ms: int, last: int) -> list[Alert]:
        """End the alert of missing heartbeats, if it is open."""
        until, raised_at = self._silence.get() or (0, 0)
        if until:
            self._handle.deleteTimer(until)
        until = now_ms + round(self._rules.of(queue).silence_seconds * 1000)
        self._handle.registerTimer(until)
        self._silence.update((until, 0))
        end = max(raised_at, last)  # the clock of the relay may have been set back
        return [Alert("silence", queue, ALL, raised_at, end, True)] if raised_at else []


def _row(store_id: str, alert: Alert) -> Row:
    return Row(store_id=store_id, **msgspec.structs.asdict(alert))
