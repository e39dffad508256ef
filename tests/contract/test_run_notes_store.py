"""Promises of `fairlead.ports.run_notes.RunNotesStore`, for each store that keeps notes of runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead import App
from fairlead.ports.task_store import TaskStore
from fairlead.testing.contract.run_notes import *  # noqa: F403
from tests.conftest import url_of


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[TaskStore]:
    """Return a new store of each kind in turn."""
    app = App(url_of(request.param, request))
    app.migrate()
    yield app.store
    app.close()
