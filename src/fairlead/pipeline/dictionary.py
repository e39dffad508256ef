"""The data dictionary: all tables of the lake, and their description for people."""

from __future__ import annotations

import json

from fairlead.pipeline.bronze import ATTEMPTS, EVENTS, QUARANTINE
from fairlead.pipeline.definitions.backlog import BACKLOG
from fairlead.pipeline.definitions.cost import COST
from fairlead.pipeline.definitions.failures import FAILURES
from fairlead.pipeline.definitions.fairness import FAIRNESS
from fairlead.pipeline.definitions.incidents import INCIDENTS
from fairlead.pipeline.definitions.latency import LATENCY, LATENCY_HIST
from fairlead.pipeline.definitions.service import SERVICE
from fairlead.pipeline.definitions.slo import SLO, SLO_COUNTS
from fairlead.pipeline.definitions.tasks import OPEN_TASKS, TASKS
from fairlead.pipeline.definitions.tenant_share import TENANT_SHARE
from fairlead.pipeline.runs import RUNS
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.location import NAMESPACE, flat_name

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


def as_markdown() -> str:
    """Return the data dictionary, a page of the documentation."""
    lines = [
        "# Tables of the pipeline",
        "",
        (
            "`fairlead pipeline tables` prints this page. Instants are in UTC with microseconds."
            " The names of durations end in `_us`; durations are whole microseconds. A column"
            " marked with ? may be null."
        ),
    ]
    for table in TABLES:
        doc = table.doc[0].upper() + table.doc[1:]
        lines += [
            "",
            f"## {table.name}",
            "",
            (
                f"{doc}. Key: {', '.join(table.key)}. One partition for each {table.by} of "
                f"`{table.instant}`."
            ),
            "",
            "| column | type | meaning |",
            "|---|---|---|",
        ]
        lines += [
            f"| `{c.name}`{'?' if c.nullable else ''} | {c.type} | {c.doc.replace('|', '/')} |"
            for c in table.columns
        ]
    return "\n".join(lines)


def as_dbt_sources() -> str:
    """Return a file `sources.yml` of dbt with all tables, by their names in the catalog."""
    lines = [
        "version: 2",
        "sources:",
        f"  - name: {NAMESPACE}",
        f"    schema: {NAMESPACE}",
        '    description: "Tables of the pipeline of Fairlead"',
        "    tables:",
    ]
    for table in TABLES:
        lines += [
            f"      - name: {flat_name(table)}",
            f"        description: {json.dumps(table.doc)}",
            f"        loaded_at_field: {table.instant}",
            "        columns:",
        ]
        for column in table.columns:
            lines += [
                f"          - name: {column.name}",
                f"            description: {json.dumps(column.doc)}",
                f"            data_type: {json.dumps(column.type)}",
                *(["            data_tests: [not_null]"] if column.name in table.key else []),
            ]
    return "\n".join(lines)
