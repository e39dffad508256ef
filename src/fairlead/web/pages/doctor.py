"""The doctor: what is wrong with store, workers and queues, and how to cure it."""

from __future__ import annotations

from starlette.responses import Response

from fairlead.errors import NotSupported
from fairlead.operate.doctor import Finding, examine
from fairlead.web.page import FACTS_SECONDS, Page
from fairlead.web.routing import Navigation, ScreenRoute, screen

NAVIGATION = Navigation(title="Doctor", route="doctor", order=120)

_ORDER = {"problem": 0, "note": 1, "ok": 2}


def routes() -> list[ScreenRoute]:
    """Return the routes of this screen."""
    return [screen("/doctor", show_doctor, name="doctor")]


def show_doctor(page: Page) -> Response:
    """Show what the doctor finds, problems first."""
    found = _read(page)
    findings = sorted(found, key=lambda finding: _ORDER[finding.severity])
    problems = sum(finding.severity == "problem" for finding in findings)
    return page.render("doctor.html", findings=findings, problems=problems)


def _read(page: Page) -> list[Finding]:
    try:
        return page.of_facts(
            "doctor", lambda facts: page.wait(examine(page.context, facts=facts)), FACTS_SECONDS
        )
    except NotSupported:
        return page.shared("doctor", lambda: page.wait(examine(page.context)), FACTS_SECONDS)
