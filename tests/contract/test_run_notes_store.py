"""Promises of `fairlead.ports.run_notes.RunNotesStore`, for each store that keeps notes of runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead import App
from fairlead.errors import NotSupported
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


async def test_a_store_without_notes_names_those_that_keep_them(redis_url: str) -> None:
    app = App(redis_url)
    with pytest.raises(NotSupported, match=r"no progress, checkpoints or log lines.*postgresql://"):
        _ = app.store.run_notes
    app.close()
