"""Promises of `fairlead.ports.trigger_channel.TriggerChannel`, for every channel on its real server.

The tests are in tests/contract/trigger_channel.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fairlead import App
from services.kafka import KafkaServer
from services.postgres import PostgresServer
from tests.contract.trigger_channel import (
    ChannelKit,
    ServerAwayContract,
    TriggerChannelContract,
    secret_of,
)
from tests.tiers import NIGHTLY


class DatabaseKit(ChannelKit):
    """The database channel: named pipes on SQLite, LISTEN and NOTIFY on PostgreSQL."""

    def __init__(self, url: str, channel: str | None = None, server: Any = None) -> None:
        self.url = url
        self.channel = channel
        self.server = server
        self.commits_out_of_order = url.startswith("postgresql")

    def application(self) -> App:
        app = App(self.url, channel=self.channel)
        app.migrate()
        return app

    def lose_announcements(self, app: App) -> None:
        app.channel._on_any_notification = lambda notification: None  # type: ignore[attr-defined]

    def sweep_every(self, app: App, seconds: float) -> None:
        app.channel._heal_every = seconds  # type: ignore[attr-defined]
        app.channel._heal_at = app.clock.monotonic() + seconds  # type: ignore[attr-defined]
        app.channel.room_freed()
        app.channel._changed.set()  # type: ignore[attr-defined]


class CarryingKit(DatabaseKit):
    """A channel that carries the triggers of tasks in a database."""

    def __init__(self, url: str, channel: str, server: Any = None) -> None:
        super().__init__(url, channel, server)
        self.secret = secret_of(channel)

    def lose_announcements(self, app: App) -> None:
        super().lose_announcements(app)
        app.channel._sender.send = lambda messages: None  # type: ignore[attr-defined]


def kit_of(kind: str, fixture: Callable[[str], Any]) -> ChannelKit:
    """Return the kit of a channel on the servers that all tests share."""
    if kind == "kafka":
        pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
    if kind == "sqlite":
        return DatabaseKit(fixture("sqlite_url"))
    store = fixture("migrated_postgres_url")
    return DatabaseKit(store) if kind == "postgres" else CarryingKit(store, fixture(f"{kind}_url"))


class TestTriggerChannel(TriggerChannelContract):
    """Each channel on its real server."""

    @pytest.fixture(params=["sqlite", "postgres", "kafka"])
    def kit(self, request: pytest.FixtureRequest) -> ChannelKit:
        return kit_of(request.param, request.getfixturevalue)


class TestServerAway(ServerAwayContract):
    """Each channel with a server, on a server that the test may stop."""

    @pytest.fixture(
        params=[pytest.param(k, marks=NIGHTLY("an outage")) for k in ("postgres", "kafka")]
    )
    def kit(
        self,
        request: pytest.FixtureRequest,
        sqlite_url: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Iterator[ChannelKit]:
        kind = request.param
        if kind == "kafka":
            pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
            # unsent messages are dropped sooner
            monkeypatch.setattr("fairlead.backends.kafka.channel.SEND_SECONDS", 1.0)
        with PostgresServer() if kind == "postgres" else KafkaServer() as server:
            if kind == "postgres":
                yield DatabaseKit(server.create_database(), server=server)
            else:
                yield CarryingKit(sqlite_url, server.url, server)
