"""A worker for tests of Celery's names."""

from __future__ import annotations

from fairlead.contrib.celery import Celery
from fairlead.testing import drain


async def run(celery: Celery) -> None:
    """Run a worker until every task has ended or failed."""
    await drain(celery.fairlead)
