"""URLs of Redis, and their options for queues of tasks."""

from __future__ import annotations

import pytest

from fairlead.errors import ConfigurationError

endpoint = pytest.importorskip(
    "fairlead.backends.redis.sharded.endpoint", reason="needs the extra redis"
)


def test_options_of_fairlead_are_removed_from_the_url_and_others_go_to_redis_py() -> None:
    found = endpoint.RedisEndpoint.of(
        "redis://me:secret@host:6380/2?streams=16&per_shard=2&reclaim=5&socket_timeout=3&prefix=shop"
    )
    assert found.url == "redis://me:secret@host:6380/2?socket_timeout=3"
    assert found.location == "redis://host:6380/2"
    assert (found.streams, found.per_shard, found.reclaim, found.prefix) == (16, 2, 5.0, "shop")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("streams=many", "streams"),
        ("per_shard=2.5", "per_shard"),
        ("reclaim=soon", "reclaim"),
        ("ttl=", "ttl"),
        ("steams=64", "steams"),
        ("socket_timeout=long", "socket_timeout"),
        ("reclaim=0", "reclaim"),
        ("reads=both", "reads"),
        ("streams=4&per_shard=6", "per_shard|streams|shard"),
    ],
)
def test_a_wrong_option_is_named_without_the_password(options: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as raised:
        endpoint.RedisEndpoint.of(f"redis://me:secret@host/0?{options}")
    assert "secret" not in str(raised.value)
