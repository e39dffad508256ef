"""Django of these tests: the project `examples/django_shop`, on each database in turn."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("django", reason="pip install django")
if pytest.importorskip("django").VERSION < (6,):
    pytest.importorskip("django_tasks", reason="pip install django-tasks")

ROOT = Path(__file__).parents[2]
SHOP = ROOT / "examples" / "django_shop"

sys.path.insert(0, str(SHOP))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop_site.settings")

import django  # noqa: E402

django.setup()

import psycopg  # noqa: E402
from asgiref.local import Local  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connections  # noqa: E402
from psycopg import sql  # noqa: E402

from fairlead.contrib.django import get_app  # noqa: E402

_KEPT = [
    "auth_permission",
    "django_content_type",
    "django_migrations",
    "fairlead_schema",
    "fairlead_store",
]
"""Tables that migrations fill."""


ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
ON_BOTH = pytest.mark.parametrize("database_url", ["sqlite", "postgres"], indirect=True)
"""Marks of tests that run on another database than PostgreSQL."""


def settings_of(url: str) -> dict[str, Any]:
    """Return the entry of DATABASES for a URL."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": parts.path[1:],
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
        }
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path[1:]),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": str(parts.port or ""),
        "CONN_MAX_AGE": None,
    }


def use_database(settings: dict[str, Any]) -> None:
    """Let Django and Fairlead use this database from now on."""
    use_databases({"default": settings})


def use_databases(settings: dict[str, dict[str, Any]]) -> None:
    """Let Django use these databases, by alias, from now on."""
    get_app().close()
    connections.close_all()
    connections.settings = connections.configure_settings(settings)
    connections._connections = Local(connections.thread_critical)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a SQLite file that Django has migrated."""
    path = tmp_path_factory.mktemp("django") / "shop.sqlite3"
    use_database(settings_of(f"sqlite:///{path}"))
    call_command("migrate", verbosity=0)
    connections.close_all()
    return path.read_bytes()


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database that Django has migrated: PostgreSQL, unless a mark names another one."""
    if getattr(request, "param", "postgres") == "postgres":
        url: str = request.getfixturevalue("migrated_shop_url")
        return url
    path = tmp_path / "shop.sqlite3"
    path.write_bytes(request.getfixturevalue("migrated_file"))
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def shop_url(postgres_server: Any) -> str:
    """The URL of a PostgreSQL database that Django has migrated."""
    url: str = postgres_server.create_database()
    use_database(settings_of(url))
    call_command("migrate", verbosity=0)
    connections.close_all()
    return url


@pytest.fixture
def migrated_shop_url(postgres_server: Any, shop_url: str) -> Iterator[str]:
    """The URL of that database, without the rows of earlier tests."""
    with psycopg.connect(shop_url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
            " AND relkind = 'r' AND relname <> ALL(%s)",
            [_KEPT],
        )
        tables = sql.SQL(", ").join(sql.Identifier(name) for (name,) in found)
        connection.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY").format(tables))
    yield shop_url
    if postgres_server.pid is not None:
        postgres_server.disconnect(shop_url)


@pytest.fixture
def database(database_url: str) -> Iterator[str]:
    """The URL of the database that Django uses in the test."""
    use_database(settings_of(database_url))
    yield database_url
    get_app().close()
    connections.close_all()


@pytest.fixture
def announced(database: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Announcements of the application to workers in the test."""
    found: list[Any] = []
    monkeypatch.setattr(get_app().channel, "announce", found.append)
    return found
