"""Fixtures of pytest: an application on a database of its own for each test.

Override `fairlead_app` to test the application of your project, and `fairlead_url` to choose the
database of its tests. A test without a kit can open only test databases: temporary files, and
databases whose name has the word `test`. The testing kit is imported at its first use.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairlead.connector import Connector
from fairlead.errors import ConfigurationError
from fairlead.urls import shown_url

if TYPE_CHECKING:
    from fairlead import App
    from fairlead.testing import Kit
    from fairlead.testing.kit import HasApp


OWN_URL = "fairlead_own_url"
"""Name of a mark, and of an option in the file of pytest."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options --fairlead-url and, in the file of pytest, `fairlead_own_url`."""
    parser.addini(
        OWN_URL, "let all tests use the databases of their applications", type="bool", default=False
    )
    parser.getgroup("fairlead").addoption(
        "--fairlead-url",
        metavar="URL",
        help="database for tests with `fairlead_kit`, such as postgresql://db/shop_test_{worker};"
        " {worker} is the worker of pytest-xdist, or main. Default: a file for each test",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse all but test databases from now on, unless the file of pytest allows all."""
    config.addinivalue_line(
        "markers", f"{OWN_URL}: may use the database of an application, outside of `fairlead_kit`"
    )
    if not config.getini(OWN_URL):
        config.pluginmanager.register(_TestsOnly(config.option.basetemp))


class _TestsOnly:
    """A `fairlead.connector.Guard` that allows only test databases: files in the folder of
    temporary files, and databases whose name has the word `test`."""

    def __init__(self, basetemp: str | None) -> None:
        """`basetemp`: folder of pytest's own temporary files."""
        roots = (basetemp, os.environ.get("PYTEST_DEBUG_TEMPROOT"), tempfile.gettempdir())
        self._roots = [Path(root).resolve() for root in roots if root]
        self._may_use_all = False
        self._is_test_database = cache(self._find_whether_test)
        self._before, Connector.guard = Connector.guard, self

    def check(self, url: str) -> None:
        """Raise ConfigurationError for a database that is no test database."""
        if not self._may_use_all and not self._is_test_database(url):
            raise ConfigurationError(
                f"a test uses {shown_url(url)} without `fairlead_kit`: give the test this fixture,"
                " before others that submit, or give the application a database whose name has the"
                f" word `test`; a test that means this database has the mark {OWN_URL}, and the"
                " option of this name in the file of pytest is for all tests"
            )

    def _find_whether_test(self, url: str) -> bool:
        from fairlead.testing.store import is_named_for_tests
        from fairlead.urls import file_of

        file = file_of(url)
        is_temporary = file is not None and any(map(file.is_relative_to, self._roots))
        return is_temporary or is_named_for_tests(url)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Let a test with the mark use all databases, with its fixtures."""
        self._may_use_all = item.get_closest_marker(OWN_URL) is not None
        try:
            return (yield)
        finally:
            self._may_use_all = False

    def pytest_unconfigure(self) -> None:
        """Restore the earlier guard, since the process may run pytest again."""
        Connector.guard = self._before


@pytest.fixture
def fairlead_url(tmp_path: Path, pytestconfig: pytest.Config) -> str | None:
    """URL of the database of this test. Override it to return another one, or None for the URL of
    the application itself. Raises UsageError if all workers of xdist would share one database."""
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
    """Application under test, here an empty one, or that of a project of Django. Override it to
    return that of your project."""
    if "fairlead.contrib.django.apps" in sys.modules:
        from fairlead.contrib.django import get_app

        return get_app()
    from fairlead import App

    return App("sqlite:////dev/null/no-kit-is-open")


@pytest.fixture
def fairlead_kit(fairlead_app: App | HasApp, fairlead_url: str | None) -> Iterator[Kit]:
    """Kit of this test: `fairlead_app` on the database at `fairlead_url`, empty at the
    beginning."""
    from fairlead.testing import open_kit

    with open_kit(fairlead_app, fairlead_url) as kit:
        yield kit
