"""Fixtures shared by all tests: the real servers, started at most once a session, and a store of each kind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from services import MissingProgram
from services.postgres import PostgresServer

settings.register_profile("fairlead", deadline=None, print_blob=True)
settings.load_profile("fairlead")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL of this session's own."""
    try:
        server = PostgresServer()
    except MissingProgram as missing:
        if os.environ.get("FAIRLEAD_REQUIRE_POSTGRES"):
            raise
        pytest.skip(str(missing))
    with server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """A fresh, empty database."""
    return postgres_server.create_database()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'tasks.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    """A fresh store of each kind in turn."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(scope="session")
def shared_data() -> Path | None:
    """The folder with the real workload, when it lies beside the repository."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    return folder if folder.is_dir() else None
