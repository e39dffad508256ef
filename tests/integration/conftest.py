"""The engine's tests run on each store, and once more with their triggers through Kafka: what a channel has to keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(params=["sqlite", "postgres", "sqlite and kafka"])
def store_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh store of each kind in turn, and the channel that goes with it."""
    store, _, channel = request.param.partition(" and ")
    if channel:
        pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
        monkeypatch.setenv("FAIRLEAD_CHANNEL", request.getfixturevalue("kafka_url"))
    return str(request.getfixturevalue(f"{store}_url"))


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    """Redis' own client of an empty database."""
    redis = pytest.importorskip("redis", reason="needs the extra redis")
    with redis.Redis.from_url(redis_url) as found:
        yield found
