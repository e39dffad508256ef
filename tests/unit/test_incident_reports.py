"""Reports of incidents on their way into the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from fairlead.clock import SYSTEM_CLOCK
from fairlead.engine.context import NodeContext
from fairlead.engine.incidents import IncidentReports
from fairlead.model import IncidentKind, IncidentReport

SOON = 20.0  # seconds; a guard against a hang


async def test_a_report_that_the_store_cannot_take_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    taken: list[str] = []

    class Store:
        async def report(self, reports: Sequence[IncidentReport], now: int) -> None:
            if any(report.subject == "bad" for report in reports):
                raise ValueError("not storable")
            taken.extend(report.subject for report in reports)

    written = asyncio.Event()
    context = SimpleNamespace(cluster=SimpleNamespace(incidents=Store()), clock=SYSTEM_CLOCK)
    reports = IncidentReports(cast(NodeContext, context), written.set)
    running = asyncio.create_task(reports.run())
    for subjects in (["bad"], ["good"], ["1", "2", "bad", "3", "4"]):
        written.clear()
        kind = IncidentKind.UNSERVED_QUEUE
        reports.add(
            [
                IncidentReport(kind=kind, subject=subject, details="", since=1, queue="q")
                for subject in subjects
            ]
        )
        async with asyncio.timeout(SOON):
            while reports._waiting:
                written.clear()
                await written.wait()
    running.cancel()
    assert taken == ["good", "1", "2", "3", "4"]
    assert caplog.text.count("incident cannot be recorded") == 2
