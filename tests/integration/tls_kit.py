"""Parameters, files and refusals of servers with TLS and a login, for their tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from fairlead import App
from fairlead.cli.output import expected
from fairlead.testing import drain
from tests.certificates import make_certificates

PASSWORD = "Gh7mark/@"
LOGIN = "app:Gh7mark%2F%40@"
"""User and password, as they are in a URL."""


def query_of(given: Mapping[str, str], replaced: Mapping[str, str]) -> str:
    """Return the parameters of a URL: `given`, but for what is `replaced`. An empty value leaves its
    parameter out."""
    return "&".join(f"{name}={value}" for name, value in {**given, **replaced}.items() if value)


def files_of_client(folder: Path) -> dict[str, str]:
    """Return the parameters that name the files of `make_certificates` for a client."""
    files = {"sslrootcert": "ca.crt", "sslcert": "client.crt", "sslkey": "client.key"}
    return {name: f"{folder}/{file}" for name, file in files.items()}


def write_pem(folder: Path) -> None:
    """Write server.pem, with key and certificate, and ca.pem, as servers on Java read them."""
    pair = [(folder / f"server.{end}").read_text() for end in ("key", "crt")]
    (folder / "server.pem").write_text("".join(pair))
    (folder / "ca.pem").write_text((folder / "ca.crt").read_text())


def with_other_files(changes: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Make certificates of another authority in the folder, which the changes name "{other}"."""
    make_certificates(folder)
    return {name: value.format(other=folder) for name, value in changes.items()}


async def run_a_task(app: App) -> None:
    """Check that a task of the application runs, whose queue is on the server."""
    ran: list[int] = []

    @app.task
    async def work(n: int) -> None:
        ran.append(n)

    app.migrate()
    await work.submit_async(n=1)
    await drain(app)
    assert ran == [1]


async def refusal_of(app: App) -> str:
    """Run a worker of the application, which has a task in a queue on the server; return the line
    with which it ends."""

    @app.task
    async def work() -> None:
        """Do nothing."""

    with pytest.raises(BaseException) as caught:
        await app.node().run()
    found = expected(caught.value)
    assert found is not None, caught.value
    (line,), code = found
    assert code == 2
    check_line(line)
    return line


def check_line(line: str) -> None:
    """Check that an error is one line without the password."""
    assert "Gh7mark" not in line and "\n" not in line
