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
    assert found.server.url == "redis://me:secret@host:6380/2?socket_timeout=3"
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


@pytest.mark.parametrize(
    ("url", "location", "kind", "hosts"),
    [
        ("redis+sentinel://a,b:7/shop", "redis+sentinel://a,b:7/shop", "sentinel", 2),
        ("rediss+sentinel://u:secret@a/shop/3?sentinel_password=secret", "", "sentinel", 1),
        ("redis+cluster://:secret@a,[::1]:7000/", "redis+cluster://a,[::1]:7000", "cluster", 2),
        ("rediss+cluster://a", "rediss+cluster://a", "cluster", 1),
        ("unix:///run/redis.sock", "unix:///run/redis.sock", "server", 0),
    ],
)
def test_a_url_names_sentinels_or_servers_of_a_cluster(
    url: str, location: str, kind: str, hosts: int
) -> None:
    found = endpoint.RedisEndpoint.of(f"{url}{'&' if '?' in url else '?'}reclaim=7")
    assert (found.server.kind, len(found.server.hosts), found.reclaim) == (kind, hosts, 7.0)
    assert found.location in (location, "rediss+sentinel://a/shop/3")
    assert "secret" not in repr(found)
    client = found.server.client()  # opens no connection
    client.close()


def test_settings_of_sentinels_are_apart_from_those_of_the_servers() -> None:
    url = (
        "rediss+sentinel://u:pw@a/shop/3?sentinel_username=s&sentinel_password=sp&socket_timeout=3"
    )
    server = endpoint.RedisEndpoint.of(url).server
    assert server.settings == {
        "username": "u",
        "password": "pw",
        "db": 3,
        "ssl": True,
        "socket_timeout": 3.0,
    }
    assert server.sentinel_settings == {
        "username": "s",
        "password": "sp",
        "ssl": True,
        "socket_timeout": 3.0,
    }


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("redis+sentinel://:secret@a", "the name by which Sentinel knows the master is missing"),
        ("redis+sentinel://:secret@a/shop/x", "'x' is no database"),
        ("redis+sentinel://:secret@a:b/shop", "'a:b' is no host"),
        ("redis+sentinel://:secret@a,/shop", "'' is no host"),
        ("redis+sentinel://:secret@a/shop?steams=1", "'steams' is unknown"),
        ("redis+sentinel://:secret@a/shop?sentinel_pass=secret", "'sentinel_pass' is unknown"),
        ("redis+cluster://:secret@a/3", "only database 0"),
        ("redis+cluster://:secret@a?steams=1", "'steams' is unknown"),
        ("redis+cluster://:secret@a?retry_on_timeout=yes", "'retry_on_timeout' is unknown"),
        ("redis+cluster://:secret@a?sentinel_password=secret", "sentinel_password is for"),
        ("redis+cluster://:secret@a?wait_replicas=1", "a cluster confirms no writes"),
        ("redis://:secret@a?wait_replicas=0", "wait_replicas='0': use a number of 1"),
        ("redis://:secret@a?wait_replicas=1&wait_ms=9000", "wait_ms='9000': use a number of 1"),
        ("redis://:secret@a?wait_ms=10", "wait_ms needs wait_replicas"),
        ("redis+ring://:secret@a", "no URL of Redis"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_secrets(url: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as raised:
        endpoint.RedisEndpoint.of(url)
    assert "secret" not in str(raised.value)
