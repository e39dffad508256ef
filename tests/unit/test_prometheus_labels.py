"""Names of queues and tasks in the metrics: any text stays one bounded label in the real exposition
formats, different names stay different series, and the number of series is bounded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, openmetrics, parser
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from fairlead.contrib.prometheus import OTHER, PrometheusObserver, exposition
from fairlead.core.visible import LONGEST_LABEL, label, visible
from fairlead.engine.run import Run
from fairlead.model import ClaimedTask, Finish
from fairlead.ports.observer import OrderedGauges
from fairlead.supervisor.exposition import families_of, registry_of
from fairlead.supervisor.metrics import Total
from tests.builders import task, trigger
from tests.ids import id_of
from tests.tiers import examples

HOSTILE = [
    'a"b',
    "a\\",
    "a\\n",
    "a\nb",
    "\r\n# HELP x y\nx 1\n",
    '"} 1\nfairlead_submitted_total{queue="other',
    "{},=",
    "x" * 10_000,
    "x" * 9_999 + "y",
    "\x1b[2J",
    "\\x1b[2J",
    "user\u202egpj.exe",
    "\u2028",
    "\x85",
    "\ud800",
    "a\0b",
    " ",
    "",
    "<b>&amp;</b>",
    "שלום",
    "🦆",
    "le",
    OTHER,
]
TEXT = "text/plain; version=0.0.4"
OPEN = f"{openmetrics.exposition.CONTENT_TYPE_LATEST}"
PARSERS: dict[str, Callable[[str], Any]] = {
    TEXT: parser.text_string_to_metric_families,
    OPEN: text_string_to_metric_families,
}
TASK = task(id_of(1))
names = st.sampled_from(HOSTILE) | st.text(alphabet=st.characters(codec=None), max_size=300)


def observed(pairs: list[tuple[str, str]], **settings: int) -> CollectorRegistry:
    """Return the metrics of a process that submitted and ran a task of each queue and name."""
    observer = PrometheusObserver(**settings)
    claimed = ClaimedTask(TASK.id, 2, 1, 1, b"{}", "json", 5, False, None)
    runs = [Run(trigger(TASK.id, name, queue=queue), claimed, None) for queue, name in pairs]
    for run in runs:
        run.end(Finish("", 2, "done", "DONE", 5, 6))
    observer.submitted(
        [msgspec.structs.replace(TASK, queue=queue, name=name) for queue, name in pairs]
    )
    observer.claimed(runs)
    observer.finished(runs)
    observer.oldest_ready({queue: float(n + 1) for n, (queue, _) in enumerate(pairs)})
    observer.ordered({queue: OrderedGauges(1, 2, 3, 4.0, 5) for queue, _ in pairs})
    observer.incidents({("error", queue, name): 1 for queue, name in pairs})
    return observer.registry


def exposed(registry: CollectorRegistry, accept: str) -> Iterator[Any]:
    """Yield the samples that a server of Prometheus reads from the response."""
    body, content_type = exposition(registry, accept)
    assert content_type.split(";")[0] == accept.split(";")[0]
    for family in PARSERS[accept](body.decode()):
        yield from family.samples


@pytest.mark.parametrize("accept", PARSERS)
@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(names, names), min_size=1, max_size=6, unique=True))
def test_any_names_come_back_from_both_formats_as_bounded_different_labels(
    accept: str, pairs: list[tuple[str, str]]
) -> None:
    registry = observed(pairs)
    total = Total()
    total.update(1, "node 1", families_of(registry))
    for each in (registry, registry_of(total)):
        samples = list(exposed(each, accept))
        for sample in samples:
            for value in sample.labels.values():
                assert len(value) <= LONGEST_LABEL and visible(value) == value
        for metric in ("fairlead_submitted_total", "fairlead_started_total", "fairlead_incidents"):
            found = {
                (sample.labels["queue"], sample.labels["name"]): sample.value
                for sample in samples
                if sample.name == metric
            }
            assert found == {(label(queue), label(name)): 1.0 for queue, name in pairs}


@given(st.lists(names, min_size=2, max_size=2, unique=True))
def test_different_names_have_different_labels(pair: list[str]) -> None:
    assert label(pair[0]) != label(pair[1])
    for text in pair:  # also from the label of another name
        assert label(label(text)) != label(text) or label(text) == text


def test_each_hostile_name_has_a_label_of_its_own() -> None:
    assert len({label(text) for text in HOSTILE}) == len(HOSTILE)
    assert label("mail") == "mail"


def test_fairness_keys_make_no_series() -> None:
    observer = PrometheusObserver()
    for n in range(10_000):
        observer.submitted([msgspec.structs.replace(TASK, fairness_key=f"tenant-{n}")])
    samples = [s for s in exposed(observer.registry, TEXT) if s.name == "fairlead_submitted_total"]
    assert [(s.labels, s.value) for s in samples] == [({"queue": "q", "name": "work"}, 10_000)]


def test_names_beyond_the_bound_are_counted_together_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pairs = [(f"queue-{n}", "send") for n in range(1000)]
    with caplog.at_level(logging.WARNING, "fairlead.metrics"):
        samples = list(exposed(observed(pairs, most_names=10), TEXT))
    submitted = {
        s.labels["queue"]: s.value for s in samples if s.name == "fairlead_submitted_total"
    }
    assert submitted == {**{f"queue-{n}": 1.0 for n in range(10)}, OTHER: 990.0}
    oldest = {
        s.labels["queue"]: s.value for s in samples if s.name == "fairlead_oldest_ready_seconds"
    }
    assert oldest[OTHER] == 1000.0
    incidents = [s.value for s in samples if s.name == "fairlead_incidents"]
    assert sum(incidents) == 1000 and len(incidents) == 11
    assert len([record for record in caplog.records if "too many names" in record.message]) == 2
    assert {record.names for record in caplog.records} == {"queues", "queues with tasks"}
