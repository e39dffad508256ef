"""A contract is kept by each store, so its suite runs over all of them in both tiers."""

from __future__ import annotations

import pytest

from tests.conftest import url_of


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    """A fresh store of each kind in turn."""
    return url_of(request.param, request)
