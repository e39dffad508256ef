"""An application on each store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead import App


@pytest.fixture
def app(store_url: str) -> Iterator[App]:
    """An application on a fresh, migrated store of each kind in turn."""
    application = App(store_url)
    application.migrate()
    yield application
    application.close()
