"""URLs of Redis, and their options."""

from __future__ import annotations

import pytest

from fairlead.errors import ConfigurationError, StoreUnavailable, WriteRefused

redis_url = pytest.importorskip("fairlead.sharded.redis_url", reason="needs the extra redis")


def test_options_of_a_confirmation_are_removed_from_the_url_and_others_go_to_redis_py() -> None:
    found = redis_url.RedisUrl.of(
        "redis://me:secret@host:6380/2?wait_replicas=2&wait_ms=5&socket_timeout=3"
    )
    assert found.url == "redis://me:secret@host:6380/2?socket_timeout=3"
    assert found.location == "redis://host:6380/2"
    assert (found.confirmation.replicas, found.confirmation.millis) == (2, 5)


@pytest.mark.parametrize(
    ("options", "named"),
    [("streams=64", "streams"), ("socket_timeout=long", "socket_timeout")],
)
def test_a_wrong_option_is_named_without_the_password(options: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as raised:
        redis_url.RedisUrl.of(f"redis://me:secret@host/0?{options}")
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
    found = redis_url.RedisUrl.of(url)
    assert (found.kind, len(found.hosts)) == (kind, hosts)
    assert found.location in (location, "rediss+sentinel://a/shop/3")
    assert "secret" not in repr(found)
    client = found.client()  # opens no connection
    client.close()


def test_settings_of_sentinels_are_apart_from_those_of_the_servers() -> None:
    url = (
        "rediss+sentinel://u:pw@a/shop/3?sentinel_username=s&sentinel_password=sp&socket_timeout=3"
    )
    server = redis_url.RedisUrl.of(url)
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
        ("redis+sentinel://:secret@a/shop/x", "the path is no number of a database"),
        ("redis+sentinel://:secret@a:b/shop", "number 1 is no host"),
        ("redis+sentinel://:secret@a,/shop", "number 2 is no host"),
        (
            "redis+sentinel://:secret@a/shop?wait_replica=1",
            "unknown parameter wait_replica; did you mean wait_replicas",
        ),
        (
            "redis+sentinel://:secret@a/shop?sentinel_pass=secret",
            "unknown parameter sentinel_pass; did you mean sentinel_password",
        ),
        ("redis+cluster://:secret@a/3", "only database 0"),
        ("redis+cluster://:secret@a?steams=1", "unknown parameter steams"),
        ("redis+cluster://:secret@a?retry_on_timeout=yes", "'retry_on_timeout' is unknown"),
        ("redis+cluster://:secret@a?sentinel_password=secret", "sentinel_password is for"),
        ("redis+cluster://:secret@a?wait_replicas=1", "a cluster confirms no writes"),
        ("redis://:secret@a?wait_replicas=0", "wait_replicas='0': use a number of 1"),
        ("redis://:secret@a?wait_replicas=1&wait_ms=9000", "wait_ms='9000': use a number of 1"),
        ("redis://:secret@a?wait_ms=10", "wait_ms needs wait_replicas"),
        ("redis+ring://:secret@a", "no URL of Redis"),
        ("redis://:secret@a/zz", "a/zz: the path is no number of a database"),
        ("redis://:secret@a/1/2", "the path is no number of a database"),
        ("redis://:secret@a/-1", "the path is no number of a database"),
        ("redis://:secret@a,b/0", "redis:// has one host"),
        ("redis://:secret@a:99999/0", "number 1 is no host"),
        ("redis://user:secret", "redis://...: number 1 is no host"),
        ("redis://:1@secret@a/0", "has an @ or # that ends no login"),
        ("redis://:1/secret@a/0", "has an @ or # that ends no login"),
        ("redis://:1#secret@a/0", "has an @ or # that ends no login"),
        ("redis://a/0?password=1&secret=2", "a parameter cannot be read"),
        ("redis://a/0?socket_timeout=secret", "'socket_timeout' is unknown, or has a bad value"),
        ("redis://a/0?sokcet_timeout=1", "sokcet_timeout; did you mean socket_timeout"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_secrets(url: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as raised:
        redis_url.RedisUrl.of(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        # Upstash, Aiven, Redis Cloud, and Heroku, whose certificates are not verified.
        ("rediss://default:a%2Bb@eu1-x.upstash.io:6379", {"host": "eu1-x.upstash.io"}),
        ("rediss://default:a%2Bb@x.aivencloud.com:12345", {"port": 12345}),
        ("redis://default:a%2Bb@redis-1.cloud.redislabs.com:18400/0", {"port": 18400}),
        ("rediss://:a%2Bb@ec2-1.amazonaws.com:6380?ssl_cert_reqs=none", {"ssl_cert_reqs": "none"}),
        ("redis://h/3", {"db": 3}),
        ("redis://h/?db=3", {"db": 3}),
        ("redis://h/0?password=a+b", {"password": "a+b"}),
        ("redis://[::1]:7/1", {"host": "::1", "port": 7, "db": 1}),
        ("redis://:a%2Bb@", {"password": "a+b"}),
        ("unix://:a%2Bb@/run/redis.sock?db=2", {"path": "/run/redis.sock", "db": 2}),
    ],
)
def test_a_url_of_one_server_sets_what_it_says(url: str, expected: dict[str, object]) -> None:
    client = redis_url.RedisUrl.of(url).client()
    found = client.connection_pool.connection_kwargs
    assert expected.items() <= found.items()
    if "a%2Bb" in url:
        assert found["password"] == "a+b"
    client.close()


def test_a_command_that_redis_refuses_for_its_content_is_no_outage() -> None:
    from redis.exceptions import ResponseError

    from fairlead.sharded.redis_errors import translated

    assert type(translated(ResponseError("ERR value is too large"), "q")) is WriteRefused
    outage = translated(ResponseError("MISCONF cannot write"), "q")
    assert type(outage) is StoreUnavailable
