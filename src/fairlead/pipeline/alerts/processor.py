"""The watch of each queue (see `watch`) as a stateful operator of Spark. RocksDB keeps one state
for each queue and one row for each fairness key of the queue.

The state is bounded: the last minute and open alerts of a queue, and the keys with tasks within
`forget_seconds`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from fairlead.pipeline.incidents.heartbeat import decode
from fairlead.pipeline.incidents.key_minutes import KeyMinutes
from fairlead.pipeline.incidents.watch import ALL, Alert, Rules, Watched, observe

ALERT_SCHEMA = (
    "store_id string, kind string, queue string, subject string, start bigint, at bigint, is_over"
    " boolean, tasks bigint"
)
_MINUTES_SCHEMA = "minute bigint, tasks bigint, before bigint, mean double, known int"


def alerts(heartbeats: DataFrame, rules: Rules) -> DataFrame:
    """Return the rows of ALERT_SCHEMA for rows (store_id, queue, kafka_offset, heartbeat)."""
    return heartbeats.groupBy("store_id", "queue").transformWithState(
        statefulProcessor=Watch(rules),
        outputStructType=ALERT_SCHEMA,
        outputMode="Update",
        timeMode="ProcessingTime",
    )


class Watch(StatefulProcessor):
    """Watch of one group (store, queue)."""

    def __init__(self, rules: Rules) -> None:
        self._encoded_rules = msgspec.json.encode(rules)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state; Spark calls this in each task."""
        self._rules = msgspec.json.decode(self._encoded_rules, type=Rules)
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
        keys, before = _Keys(self._keys), (watched.relay, watched.up)
        raised = observe(watched, heartbeats, keys, self._rules.of(queue))
        keys.save()
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


class _Keys:
    """Keys of a queue in one batch, each read and written once."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self._read: dict[str, KeyMinutes] = {}

    def get(self, key: str) -> KeyMinutes | None:
        if key not in self._read and self._state.containsKey((key,)):
            self._read[key] = KeyMinutes(*self._state.getValue((key,)))
        return self._read.get(key)

    def put(self, key: str, minutes: KeyMinutes) -> None:
        self._read[key] = minutes

    def save(self) -> None:
        for key, minutes in self._read.items():
            self._state.updateValue((key,), msgspec.structs.astuple(minutes))


def _row(store_id: str, alert: Alert) -> Row:
    return Row(store_id=store_id, **msgspec.structs.asdict(alert))
