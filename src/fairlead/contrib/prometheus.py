"""Prometheus metrics of a worker or a submitting process: an observer that counts whole batches.

Labels are names of queues and tasks, never keys of tasks, so tenants make no series. Names are
shown as `fairlead.core.visible.label` does.
"""

from __future__ import annotations

import logging
from collections import Counter as Tally
from collections.abc import Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from fairlead.app import App
from fairlead.clock import MICROS
from fairlead.core.visible import label
from fairlead.model import NewTask
from fairlead.ports.incident_store import IncidentCounts
from fairlead.ports.observer import ObservedRun, OrderedGauges

log = logging.getLogger("fairlead.metrics")

MOST_NAMES = 2000
"""Default maximum number of pairs of a queue and a task that have series of their own, and of
queues."""

OTHER = "(other)"
"""Label of all names beyond that number."""

_DELAYS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    300,
    1800,
    7200,
)


class _Names:
    """The labels of names, a bounded number of them."""

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._most = most
        self._labels: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._is_full = False

    def labels(self, *names: str) -> tuple[str, ...]:
        """Return the labels of these names, or OTHER for each of them once there are too many."""
        found = self._labels.get(names)
        if found is None and len(self._labels) < self._most:
            found = self._labels[names] = tuple(map(label, names))
        if found is None and not self._is_full:
            self._is_full = True
            log.warning(
                "too many names for series of their own; further ones are counted together",
                extra={"names": self._what, "most": self._most, "label": OTHER},
            )
        return found or (OTHER,) * len(names)


class PrometheusObserver:
    """A `fairlead.ports.observer.Observer` for Prometheus: `App(observer=PrometheusObserver())`, or
    `worker --metrics-port`."""

    def __init__(
        self, registry: CollectorRegistry | None = None, most_names: int = MOST_NAMES
    ) -> None:
        """most_names: maximum number of pairs of a queue and a task, and of queues, that have
        series of their own; the others share series with the label OTHER."""
        self.registry = registry or CollectorRegistry()
        self._pairs = _Names("queues with tasks", most_names)
        self._queues = _Names("queues", most_names)
        labels = ["queue", "name"]
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, buckets=_DELAYS, registry=self.registry)
        self._submitted = counter("fairlead_submitted", "Tasks inserted by this process", labels)
        self._started = counter("fairlead_started", "Tasks claimed by this node", labels)
        self._finished = counter(
            "fairlead_finished", "Runs that ended, by outcome", [*labels, "outcome"]
        )
        self._times = [
            histogram("fairlead_pickup_delay_seconds", "Time from ready to started", labels),
            histogram("fairlead_run_seconds", "Time from started to finished", labels),
        ]
        self._load = [
            gauge("fairlead_look_ahead", "Triggers in memory"),
            gauge("fairlead_in_flight", "Tasks claimed and not yet completed"),
        ]
        self._memory = [
            gauge("fairlead_look_ahead_bytes", "Memory that lanes may fill with triggers now"),
            gauge(
                "fairlead_look_ahead_budget_bytes",
                "Memory that lanes may fill with triggers at most",
            ),
        ]
        self._oldest = gauge(
            "fairlead_oldest_ready_seconds", "Wait of the oldest SUBMITTED task", ["queue"]
        )
        self._ordered = [
            gauge(f"fairlead_ordered_{what}", text, ["queue"])
            for what, text in (
                ("loaded", "Tasks of an ordered queue in memory"),
                ("in_flight", "Tasks of an ordered queue dispatched and not yet completed"),
                ("stale", "Tasks in memory that were due more than 5 minutes ago"),
                (
                    "look_ahead_seconds",
                    "Time up to which all tasks are in memory; negative while catching up",
                ),
                ("failing_partitions", "Partitions that are being reloaded"),
            )
        ]
        self._incidents = gauge("fairlead_incidents", "Open incidents, by kind", ["kind", *labels])
        self._events = counter(
            "fairlead_events",
            "Other events, such as healed triggers, lost claims and resumed tasks",
            ["event"],
        )

    def submitted(self, tasks: Sequence[NewTask]) -> None:
        for (queue, name), count in Tally((task.queue, task.name) for task in tasks).items():
            self._submitted.labels(*self._pairs.labels(queue, name)).inc(count)

    def claimed(self, runs: Sequence[ObservedRun]) -> None:
        for (queue, name), count in Tally(
            (run.trigger.queue, run.trigger.name) for run in runs
        ).items():
            self._started.labels(*self._pairs.labels(queue, name)).inc(count)

    def finished(self, runs: Sequence[ObservedRun]) -> None:
        outcomes = Tally(
            (run.trigger.queue, run.trigger.name, str(run.finish.outcome)) for run in runs
        )
        for (queue, name, outcome), count in outcomes.items():
            self._finished.labels(*self._pairs.labels(queue, name), outcome).inc(count)
        histograms: dict[tuple[str, ...], list[Histogram]] = {}
        for run in runs:
            trigger, finish = run.trigger, run.finish
            if finish.started_at is None:
                continue
            key = self._pairs.labels(trigger.queue, trigger.name)
            if key not in histograms:
                histograms[key] = [each.labels(*key) for each in self._times]
            pickup, time = histograms[key]
            pickup.observe(max(0, finish.started_at - run.claimed.ready_at) / MICROS)
            time.observe(max(0, finish.finished_at - finish.started_at) / MICROS)

    def gauges(self, look_ahead: int, in_flight: int) -> None:
        for gauge, value in zip(self._load, (look_ahead, in_flight), strict=True):
            gauge.set(value)

    def memory(self, granted: int, budget: int) -> None:
        for gauge, value in zip(self._memory, (granted, budget), strict=True):
            gauge.set(value)

    def ordered(self, queues: dict[str, OrderedGauges]) -> None:
        for queue, gauges in queues.items():
            if (labels := self._queues.labels(queue)) != (OTHER,):  # no sum of all has a meaning
                for gauge, value in zip(self._ordered, gauges, strict=True):
                    gauge.labels(*labels).set(value)

    def oldest_ready(self, ages: dict[str, float]) -> None:
        self._oldest.clear()
        oldest: dict[tuple[str, ...], float] = {}
        for queue, age in ages.items():
            labels = self._queues.labels(queue)
            oldest[labels] = max(age, oldest.get(labels, 0.0))
        for labels, age in oldest.items():
            self._oldest.labels(*labels).set(age)

    def incidents(self, counts: IncidentCounts) -> None:
        # A series appears with its first incident and disappears with the last.
        self._incidents.clear()
        for (kind, queue, name), count in counts.items():
            self._incidents.labels(kind, *self._pairs.labels(queue, name)).inc(count)

    def counted(self, what: str, count: int = 1) -> None:
        self._events.labels(what).inc(count)


def observe(app: App) -> CollectorRegistry:
    """Count the events of this application from now on; return the registry of its metrics."""
    observer = PrometheusObserver()
    app.observer = observer
    return observer.registry


def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return the metrics in the format that the Accept header asks for, and their content type."""
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
