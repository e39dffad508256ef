"""The doctor: what is wrong with store, workers and queues, and how to cure it."""

from __future__ import annotations

from starlette.responses import Response

from fairlead.operate.read_operations import doctor
from fairlead.web.page import FACTS_SECONDS, Page
from fairlead.web.routing import Navigation, ScreenRoute, screen

NAVIGATION = Navigation(title="Doctor", route="doctor", order=120)


def routes() -> list[ScreenRoute]:
    """Return the routes of this screen."""
    return [screen("/doctor", show_doctor, name="doctor")]


def show_doctor(page: Page) -> Response:
    """Show what the doctor finds, problems first."""
    findings = page.shared("doctor", lambda: doctor(page.caller), FACTS_SECONDS)
    problems = sum(finding.severity == "problem" for finding in findings)
    return page.render("doctor.html", findings=findings, problems=problems)
