"""Models: one file of SQL for each table. Its header declares the table, and its query, if a build
makes the table, computes the rows in Spark SQL (see `model_rows`)."""

from __future__ import annotations

from pathlib import Path

from fairlead.pipeline.schema import Table, declared


def _text(name: str) -> str:
    return (Path(__file__).parent / f"{name}.sql").read_text(encoding="utf-8")


def _model(name: str) -> Table:
    return declared(_text(name))


ATTEMPTS = _model("bronze_attempts")
EVENTS = _model("bronze_events")
QUARANTINE = _model("bronze_quarantine")
TASKS = _model("silver_tasks")
OPEN_TASKS = _model("silver_open_tasks")
SERVICE = _model("silver_service")
BACKLOG = _model("silver_backlog")
TENANT_SHARE = _model("gold_tenant_share")
FAIRNESS = _model("gold_fairness")
LATENCY_HIST = _model("gold_latency_hist")
LATENCY = _model("gold_latency")
SLO_COUNTS = _model("gold_slo_counts")
SLO = _model("gold_slo")
FAILURES = _model("gold_failures")
COST = _model("gold_cost")
INCIDENTS = _model("gold_incidents")
RUNS = _model("ops_pipeline_runs")

TABLES: tuple[Table, ...] = (
    ATTEMPTS,
    EVENTS,
    QUARANTINE,
    TASKS,
    OPEN_TASKS,
    SERVICE,
    BACKLOG,
    TENANT_SHARE,
    FAIRNESS,
    LATENCY_HIST,
    LATENCY,
    SLO_COUNTS,
    SLO,
    FAILURES,
    COST,
    INCIDENTS,
    RUNS,
)
"""All tables of the lake that have a model, in the order of the data dictionary."""

SILVER = (TASKS, OPEN_TASKS, SERVICE, BACKLOG)

MEASURED_ATTEMPTS = _text("measured_attempts")
"""Query that other models use as a view."""
