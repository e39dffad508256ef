"""Prometheus metrics of this process or of all workers, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from fairlead.contrib.prometheus import exposition
from fairlead.supervisor.http import Response, Routes
from fairlead.supervisor.metrics import Family, Sample, Total, labels_of


def families_of(registry: CollectorRegistry) -> list[Family]:
    """Return the current values of all metrics of a registry."""
    return [
        Family(
            metric.name,
            metric.documentation,
            metric.type,
            [Sample(each.name, labels_of(each.labels), each.value) for each in metric.samples],
        )
        for metric in registry.collect()
    ]


def metrics_routes(registry: CollectorRegistry) -> Routes:
    """Return the route of the metrics of a registry, which is also that of `/`."""

    def respond(path: str, accept: str) -> Response | None:
        if path not in ("/", "/metrics"):
            return None
        body, content_type = exposition(registry, accept)
        return Response(HTTPStatus.OK, body, content_type)

    return respond


def registry_of(total: Total) -> CollectorRegistry:
    """Return a registry with the metrics of all workers."""
    registry = CollectorRegistry()
    registry.register(_TotalCollector(total))
    return registry


class _TotalCollector(Collector):
    def __init__(self, total: Total) -> None:
        self._total = total

    def collect(self) -> Iterator[Metric]:
        for family in self._total.families():
            metric = Metric(family.name, family.help, family.type)
            for sample in family.samples:
                metric.add_sample(sample.name, dict(sample.labels), sample.value)
            yield metric
