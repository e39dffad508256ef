"""The page: one self-contained HTML file without network requests or scripts."""

from __future__ import annotations

from importlib import resources

from jinja2 import Environment, StrictUndefined

from fairlead.clock import MICROS, to_datetime
from fairlead.pipeline.report import cost, findings, numbers, reliability, section, service, waits
from fairlead.pipeline.report.data import ReportData


def render(data: ReportData) -> str:
    """Return the page as text. Equal data makes an equal page."""
    template = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    page = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    runs = data.runs
    failed = runs.assign(
        us=runs["seconds"] * 1e6, complaint=runs["error"].fillna(runs["failed_checks"])
    )
    return page.from_string(template).render(
        since=numbers.instant(data.period.since),
        until=numbers.instant(data.period.until),
        made_at=numbers.instant(to_datetime(data.made_at)),
        step=numbers.duration(data.period.step_s * MICROS),
        hashed=data.hashed,
        trust=findings.trust(data),
        standing_out=list(findings.standing_out(data)),
        cells=section.cells,
        class_of=section.class_of,
        tables=section.Part("tables", "Tables", data.freshness),
        runs=section.Part("runs", "Last run of each job", failed),
        quarantined=section.Part("quarantined", "Rows in quarantine, by reason", data.quarantined),
        sections={
            "load": service.load(data),
            "share": service.share(data),
            "lag": service.lag(data),
            "fairness": service.fairness(data),
            "pickup": waits.pickup(data),
            "week": waits.week(data),
            "slowdown": waits.slowdown(data),
            "objectives": reliability.objectives(data),
            "failures": reliability.failures(data),
            "cost": cost.cost(data),
        },
    )
