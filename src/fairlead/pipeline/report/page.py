"""The page: one self-contained HTML file without network requests or scripts."""

from __future__ import annotations

from importlib import resources

from jinja2 import Environment, StrictUndefined

from fairlead.clock import MICROS, to_datetime
from fairlead.pipeline.report import (
    cost,
    findings,
    numbers,
    quality,
    reliability,
    service,
    trust,
    waits,
)
from fairlead.pipeline.report.data import ReportData
from fairlead.pipeline.report.section import Section


def render(data: ReportData) -> str:
    """Return the page as text. Equal data makes an equal page."""
    template = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    page = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return page.from_string(template).render(
        since=numbers.instant(data.period.since),
        until=numbers.instant(data.period.until),
        made_at=numbers.instant(to_datetime(data.made_at)),
        step=numbers.duration(data.period.step_s * MICROS),
        hashed=data.hashed,
        digests=data.digests,
        trust=trust.trust(data),
        standing_out=findings.standing_out(data),
        sections=_sections(data),
    )


def _sections(data: ReportData) -> dict[str, Section]:
    """Return the sections by the anchor on the page."""
    return {
        "data": quality.quality(data),
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
    }
