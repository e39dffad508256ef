"""The data dictionary: all tables of the lake, and their description for people."""

from __future__ import annotations

from fairlead.pipeline.bronze import ATTEMPTS, EVENTS, QUARANTINE
from fairlead.pipeline.gold.capacity import CAPACITY
from fairlead.pipeline.gold.cost import COST
from fairlead.pipeline.gold.failures import FAILURES
from fairlead.pipeline.gold.fairness import FAIRNESS
from fairlead.pipeline.gold.incidents import INCIDENTS
from fairlead.pipeline.gold.latency import LATENCY, LATENCY_HIST
from fairlead.pipeline.gold.slo import SLO, SLO_COUNTS
from fairlead.pipeline.gold.tenant_share import TENANT_SHARE
from fairlead.pipeline.replay.tables import REPLAY_WAITS, REPLAYS
from fairlead.pipeline.runs import RUNS
from fairlead.pipeline.schema import Table
from fairlead.pipeline.silver.backlog import BACKLOG
from fairlead.pipeline.silver.service import SERVICE
from fairlead.pipeline.silver.tasks import TASKS

TABLES: tuple[Table, ...] = (
    ATTEMPTS,
    EVENTS,
    QUARANTINE,
    TASKS,
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
    REPLAYS,
    REPLAY_WAITS,
    INCIDENTS,
    CAPACITY,
    RUNS,
)


def as_markdown() -> str:
    """Return the page docs/reference/pipeline-tables.md."""
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
