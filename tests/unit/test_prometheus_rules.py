"""The alert rules for Prometheus in examples/ use metrics, labels and values that workers have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.contrib.prometheus import PrometheusObserver
from fairlead.model import WATCHED, IncidentKind, Outcome

FILE = Path(__file__).parents[2] / "examples" / "prometheus" / "fairlead.rules.yml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]
]


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_each_rule_uses_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["summary"]
    registry = PrometheusObserver().registry
    known = {name for names in registry._collector_to_names.values() for name in names}
    labels = {
        label for each in registry._collector_to_names for label in getattr(each, "_labelnames", ())
    } | {"le"}
    used = re.findall(r"fairlead_\w+", rule["expr"])
    assert used and set(used) <= known
    assert rule["expr"].count("(") == rule["expr"].count(")")
    for names in re.findall(r" by \((.*?)\)", rule["expr"]):
        assert set(names.split(", ")) <= labels
    for label, values in re.findall(r'(\w+)=~?"(.*?)"', rule["expr"]):
        kinds = {"kind": IncidentKind, "outcome": Outcome}.get(label)
        assert kinds is None or set(values.split("|")) <= {str(each) for each in kinds}
    for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
        assert label in rule["expr"]


def test_each_kind_of_a_watched_queue_has_a_rule() -> None:
    text = " ".join(rule["expr"] for rule in RULES)
    assert all(kind.value in text for kind in WATCHED)
