"""Fixtures for contract tests, which run over every store in both tiers of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead.backends.sql.migrate import migrate
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.connect import task_store
from tests.conftest import url_of


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a new store, for each kind of store."""
    return url_of(request.param, request)


@pytest.fixture
def store(store_url: str) -> Iterator[SqlTaskStore]:
    """Return a new store with tables, for each kind of store."""
    store = task_store(store_url)
    migrate(store.database)
    yield store
    store.database.close()
