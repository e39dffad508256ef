"""Fixtures of pytest: an application on a database of its own for each test.

Override `fairlead_app` to test the application of your project, and `fairlead_url` to say where its
tasks are meanwhile. The modules of Fairlead are imported at the first use of a fixture.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fairlead import App
    from fairlead.testing import Kit
    from fairlead.testing.kit import HasApp


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option --fairlead-url."""
    parser.getgroup("fairlead").addoption(
        "--fairlead-url",
        metavar="URL",
        help="database for tests with `fairlead_kit`, such as postgresql://db/shop_test_{worker};"
        " {worker} is the worker of pytest-xdist, or main. Default: a file for each test",
    )


@pytest.fixture
def fairlead_url(tmp_path: Path, pytestconfig: pytest.Config) -> str | None:
    """URL of the database of this test. Override it to return another one, or None for the URL of
    the application itself. Raises UsageError for an option that is the same in all workers of
    xdist."""
    url: str | None = pytestconfig.getoption("--fairlead-url")
    if url is None:
        return f"sqlite:///{tmp_path}/fairlead.db?synchronous=OFF"
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None and "{worker}" not in url:
        raise pytest.UsageError(
            "--fairlead-url: the workers of pytest-xdist need a database each: put {worker} into"
            " its name"
        )
    return url.replace("{worker}", worker or "main")


@pytest.fixture
def fairlead_app() -> App | HasApp:
    """Application under test, here an empty one. Override it to return that of your project."""
    from fairlead import App

    return App("sqlite:////dev/null/no-kit-is-open")


@pytest.fixture
def fairlead_kit(fairlead_app: App | HasApp, fairlead_url: str | None) -> Iterator[Kit]:
    """Kit of this test: `fairlead_app` on the database at `fairlead_url`, empty at the
    beginning."""
    from fairlead.testing import open_kit

    with open_kit(fairlead_app, fairlead_url) as kit:
        yield kit
