"""No password of a URL is ever shown, whatever the URL looks like and whoever reads it."""

from __future__ import annotations

import logging
import os
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fairlead import App
from fairlead.cli.main import app as commands
from fairlead.config import Settings
from fairlead.errors import FairleadError
from fairlead.urls import shown_url
from services.process import free_port

SECRET = "Gh7mark"
"""Part of each password, in no other part of a URL."""

SCHEMES = (
    "sqlite",
    "postgresql",
    "postgres",
    "redis",
    "rediss",
    "redis+sentinel",
    "rediss+cluster",
    "unix",
    "kafka",
    "cassandra",
    "zookeeper",
    "memory",
    "mysql",
    "amqp",
    "postgresql+asyncpg",
    "jdbc:postgresql",
    "http",
    "https",
)
PARAMETERS = (
    "password",
    "sslpassword",
    "sentinel_password",
    "sasl.password",
    "ssl_password",
    "key",
    "token",
    "PASSWORD",
    "passwort",
)
_SIGNS = st.text(alphabet="/?#@:&=+%[]\\ ,;~.-_\n\t\"'℀é1a", max_size=4)


@st.composite
def passwords(draw: st.DrawFn) -> str:
    """Draw a password, as it is or in percent codes, whole or in part."""
    text = f"{draw(_SIGNS)}{SECRET}{draw(_SIGNS)}"
    safe = draw(st.sampled_from(["raw", "", "/", "@:", "%"]))
    text = text if safe == "raw" else quote(text, safe=safe)
    return quote(text, safe="") if draw(st.booleans()) else text


@st.composite
def urls(draw: st.DrawFn) -> str:
    """Draw a URL with a password: one that can be used, or one with a mistake."""
    scheme, password = draw(st.sampled_from(SCHEMES)), draw(passwords())
    host = draw(
        st.sampled_from(["127.0.0.1:1", "127.0.0.1", "[::1]:1", "a:1,b:2", "[::1", "h:x", ""])
    )
    path = draw(st.sampled_from(["", "/", "/0", "/shop", "/shop/0", "/tasks.db", "/a b", "/%40"]))
    name = draw(st.sampled_from(PARAMETERS))
    more = draw(st.sampled_from(["", "?a=1", "?pool_size=3", "?streams=4", "?prefix=x."]))
    rest = f"{host}{path}{more}"
    queried = f"{host}{path}?{name}={password}"
    # Without a host, an @ or / would make the end of the password a host or a path.
    alone = re.sub("[@/?]", "", password)
    return draw(
        st.sampled_from(
            [
                f"{scheme}://user:{password}@{rest}",
                f"{scheme}://:{password}@{rest}",
                f"{scheme}://user%3A{password}%40{rest}",
                f"{scheme}://user:{alone}{path}",
                f"{scheme}:user:{password}@{rest}",
                f"{scheme}:///user:{password}@{rest}" if scheme != "sqlite" else queried,
                f"user:{password}@{rest}",
                f" {scheme}://user:{password}@{rest}",
                f'"{scheme}://user:{password}@{rest}"',
                f"{scheme}://{queried}",
                f"{scheme}://user@{queried}",
                f"{scheme}:///shop?host=127.0.0.1&{name}={password}",
                f"{scheme}://{queried}&a=1",
                f"host=127.0.0.1 user=app password={password}",
                f"{scheme}://h;password={alone}",
            ]
        )
    )


def said_by(error: BaseException) -> str:
    """Return everything that an error shows, with its causes."""
    return "\n".join([str(error), repr(error), *traceback.format_exception(error)])


def read_by(url: str) -> Iterator[str]:
    """Yield everything that the readers of a URL show."""
    yield shown_url(url)
    yield repr(Settings(url, url, url, url, url, url))
    given = [{"url": url}]
    given += [
        {"url": "sqlite:///tasks.db", part: url}
        for part in ("channel", "coordinator", "backlog", "log", "schedule")
    ]
    for arguments in given:
        app = App(**arguments)  # type: ignore[arg-type]
        try:
            made = app.connections
        except FairleadError as error:
            yield said_by(error)
            continue
        yield repr(app)
        yield repr(vars(app))
        yield repr(made)
        yield f"{made.store.database.location} {made.channel.location} {made.coordinator.location}"
        for part in made:
            yield repr(getattr(part, "__dict__", part))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in [key for key in os.environ if key.startswith(("FAIRLEAD_", "PG"))]:
        monkeypatch.delenv(key)
    monkeypatch.chdir(tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(url=urls())
def test_no_reader_of_a_url_shows_its_password(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        shown = "\n".join(read_by(url))
    shown += "\n".join(repr(vars(record)) for record in caplog.records)
    assert SECRET.lower() not in shown.lower()


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40
)
@given(url=urls())
def test_no_command_shows_the_password_of_a_url_that_it_refuses(url: str) -> None:
    app = App(url)
    try:
        _ = app.connections
    except FairleadError:
        pass
    else:
        return
    for arguments in (
        ["doctor", "--url", url],
        ["migrate", f"--url={url}"],
        *([["doctor", url], ["tasks", url]] if "://" in url else [["queues", "--url", url]]),
        ["pipeline", "status", "--lake", f"s3://user:{SECRET}@bucket"],
    ):
        done = CliRunner().invoke(commands, arguments)
        assert done.exit_code == 2, done.output
        assert SECRET.lower() not in done.output.lower()


def test_a_command_that_reaches_no_server_names_it_without_the_password() -> None:
    pytest.importorskip("psycopg", reason="needs the extra postgres")
    port = free_port()
    url = f"postgresql://user:{SECRET}@127.0.0.1:{port}/0"
    for command in ("doctor", "migrate", "queues"):
        done = CliRunner().invoke(commands, [command, "--url", url])
        assert SECRET not in done.output
        assert done.exit_code == 2
        assert f"127.0.0.1:{port}" in done.output


def test_the_log_of_kazoo_leaves_the_login_out(caplog: pytest.LogCaptureFixture) -> None:
    kazoo = pytest.importorskip("kazoo.protocol.serialization", reason="needs the extra zookeeper")
    pytest.importorskip("fairlead.backends.zookeeper.session")
    log = logging.getLogger("fairlead.zookeeper.client")
    with caplog.at_level(logging.DEBUG, log.name):
        log.debug("Sending request(xid=%s): %s", -4, kazoo.Auth(0, "digest", f"user:{SECRET}"))
        log.debug("Sending request(xid=%s): %s", 1, kazoo.GetData("/shop", None))
    assert len(caplog.records) == 1
    assert SECRET not in caplog.text
