"""Fixtures for contract tests, which run over every store in both tiers of tests."""

from __future__ import annotations

import pytest

from tests.conftest import url_of


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a new store, for each kind of store."""
    return url_of(request.param, request)
