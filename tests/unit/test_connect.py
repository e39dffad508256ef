"""The backend of a URL, and the error for a URL without one."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from fairlead import App, ConfigurationError, connect
from fairlead.config import Settings
from fairlead.connect import backend
from fairlead.ports.backend import Backend
from fairlead.urls import hosts_of


class NeedsMuch(Backend):
    offers = {"store": "much://host"}
    modules = ("no_library_of_this_name",)
    install = "much[all]"


@pytest.mark.parametrize(
    ("kind", "url", "expected"),
    [
        ("store", "mysql://root:secret@host/x", "of no known kind; use"),
        ("store", "kafka://host:9092", "sqlite:///tasks.db"),
        ("store", "nothing", "of no known kind; use"),
        ("channel", "amqp://root:secret@host", "'database' (default)"),
        ("channel", "cassandra://host/k", "kafka://host:9092"),
        ("coordinator", "etcd://root:secret@host", "zookeeper://host:2181/folder"),
        ("log", "redis://host", "kafka://host:9092"),
        ("schedule", "sqlite:///x.db", "cassandra://host:9042/keyspace"),
    ],
)
def test_an_unknown_scheme_is_refused_with_the_known_ones_and_without_secrets(
    kind: Any, url: str, expected: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        backend(kind, url)
    assert expected in str(refused.value)
    scheme = url.split(":")[0]
    is_other = scheme in ("mysql", "amqp", "etcd")  # no installed package registers it
    assert (f"install the package that registers {scheme}://" in str(refused.value)) is is_other
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["redis", "rediss+sentinel", "redis+cluster", "unix"])
def test_redis_is_refused_with_what_it_is_for_and_what_to_use_instead(scheme: str) -> None:
    with pytest.raises(ConfigurationError, match=r"fairlead\.sharded.*; use .*postgresql://"):
        App(f"{scheme}://host:1/0").migrate()
    with pytest.raises(ConfigurationError, match=r"fairlead\.sharded.*; use .*kafka://") as refused:
        App("sqlite:///x.db", channel=f"{scheme}://user:secret@host:1/0").migrate()
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite:///%3Amemory%3A?synchronous=OFF"])
def test_a_database_in_memory_is_refused_and_makes_no_file_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="tasks live in a file.*fairlead_kit"):
        App(url).migrate()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("one", [("one", 9)]),
        ("one:80,two", [("one", 80), ("two", 9)]),
        ("[::1]:80,[fe80::2]", [("::1", 80), ("fe80::2", 9)]),
    ],
)
def test_hosts_and_ports_of_a_url(hosts: str, expected: list[tuple[str, int]]) -> None:
    assert hosts_of("this URL", hosts, 9) == expected


@pytest.mark.parametrize(
    "hosts",
    ["", "one,", ":80", "one:", "one:0", "one:65536", "one:x", "one:²", "::1", "[::1", "a b"],
)
def test_hosts_that_cannot_be_read_are_refused(hosts: str) -> None:
    with pytest.raises(
        ConfigurationError, match="this URL: number . is no host; use host:9 with a port"
    ):
        hosts_of("this URL", hosts, 9)


def test_a_missing_library_is_named_with_the_extra_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = EntryPoint("much", f"{__name__}:NeedsMuch", connect.GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda self: NeedsMuch)
    monkeypatch.setattr("fairlead.connect._registered", lambda: {"much": entry})
    with pytest.raises(ConfigurationError, match=r"pip install 'much\[all\]'"):
        backend("store", "much://host")


def test_settings_are_read_as_utf_8_in_every_locale(tmp_path: Path) -> None:
    (tmp_path / "fairlead.toml").write_bytes('url = "sqlite:///größe.db"'.encode())
    code = "from fairlead.config import Settings; print(ascii(Settings.load().url))"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment.pop("FAIRLEAD_URL", None)
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert shown.stdout.strip() == ascii("sqlite:///größe.db"), shown.stderr


def test_a_settings_file_that_cannot_be_opened_is_a_configuration_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fairlead.toml").touch()

    def refuse(self: Path, encoding: str) -> str:
        raise PermissionError("not yours")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(ConfigurationError, match=r"fairlead\.toml: not yours"):
        Settings.load(tmp_path)
