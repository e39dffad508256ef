"""The table of URLs in the documentation is true, and an unknown parameter is named with the nearest
known one."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fairlead import App, ConfigurationError
from fairlead.urls import hide_urls, parameters_of, shown_url, split_url

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "urls.md"
_ROW = re.compile(r"\| (.+?) \| `(\w[\w+]*://\S+)` \| (.+?) \|")
_ROWS = [match.groups() for match in map(_ROW.fullmatch, _PAGE.read_text().splitlines()) if match]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in [key for key in os.environ if key.startswith(("FAIRLEAD_", "PG"))]:
        monkeypatch.delenv(key)


def test_the_table_has_the_forms_of_providers() -> None:
    assert len(_ROWS) == 18


@pytest.mark.parametrize(("origin", "url", "location"), _ROWS, ids=[row[0] for row in _ROWS])
def test_a_url_of_the_documentation_is_read_as_its_table_says(
    origin: str, url: str, location: str
) -> None:
    pytest.importorskip("psycopg" if url.startswith("postgres") else "redis")
    if not url.startswith("postgres"):
        from fairlead.sharded.redis_url import RedisUrl

        assert RedisUrl.of(url).location == location
        return
    app = App(url)
    assert app.connections.cluster.database.location == location
    assert ":pw" not in f"{app.connections} {location}"
    app.close()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mysql://u:pw@h:1,[::1]/db?key=pw", "mysql://h:1,[::1]/db"),
        ("sqlite:///a b/tasks.db?synchronous=OFF", "sqlite:///a b/tasks.db"),
        ("tasks.db", "tasks.db"),
        ("mysql://u:pw", "mysql://..."),
        ("mysql://u:1/pw@h", "mysql://..."),
        ("mysql://u:1?pw@h", "mysql://..."),
        ("mysql://u:1#pw@h", "mysql://..."),
        ("mysql://u%3Apw%40h", "mysql://..."),
        ("mysql://h/db;password=pw", "mysql://..."),
        ("host=h password=pw", "..."),
        ("mysql://u:pw@[::1", "..."),
    ],
)
def test_a_url_for_people_has_no_part_of_a_password(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no command 'amqp'", "no command 'amqp'"),
        ("no command 'amqp://u:pw@h' here", "no command 'amqp://h"),
        ("no amqp://u:p w@h here", "no amqp://..."),
        ("no amqp://h:1 pw@h here", "no amqp://h:1"),
        ("(jdbc:postgresql://h/db?password=pw): refused", "(jdbc:postgresql://h/db"),
    ],
)
def test_a_message_ends_with_its_first_url_without_secrets(text: str, shown: str) -> None:
    assert hide_urls(text) == shown


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("steams=1", r"here: unknown parameter steams; did you mean streams\?"),
        ("STREAMS=1", r"did you mean streams\?"),
        ("colour=1", "here: unknown parameter colour; use password, streams"),
        ("old=1", "here: unknown parameter old; write streams"),
        ("password=1&pw=2", "here: a parameter cannot be read: write special characters"),
        ("%20=pw", "here: a parameter cannot be read"),
    ],
)
def test_an_unknown_parameter_is_named_unless_it_may_be_a_secret(query: str, message: str) -> None:
    parts = split_url(f"redis://h?{query}")
    with pytest.raises(ConfigurationError, match=message) as refused:
        parameters_of("here", parts, ("streams", "password"), cures={"old": "write streams"})
    assert "pw" not in str(refused.value)


def test_parameters_have_no_plus_sign_for_a_space_and_the_last_value_counts() -> None:
    parts = split_url("redis://h?a=1+1&b=1%202&a=2+2")
    assert parameters_of("here", parts, ("a", "b")) == {"a": "2+2", "b": "1 2"}
