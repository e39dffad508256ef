"""The doctor says what a real Redis could lose, as it is configured, and the cure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("redis", reason="needs the extra redis")
from fairlead import App  # noqa: E402
from fairlead.operate.doctor import examine  # noqa: E402
from services.redis_group import RedisGroup  # noqa: E402
from tests.redis_states import wait_until  # noqa: E402

SAFE = {
    "maxmemory": 0,
    "maxmemory-policy": "noeviction",
    "save": "",
    "appendonly": "yes",
    "appendfsync": "always",
    "min-replicas-to-write": 1,
}


@pytest.fixture(scope="module")
def pair(redis_server: Any) -> Iterator[RedisGroup]:
    with RedisGroup(sentinels=0) as found:
        yield found


@pytest.fixture
def client(pair: RedisGroup) -> Iterator[Any]:
    """Yield a client of a master that loses nothing; its settings are restored."""
    with pair.master.operator() as found:
        before = found.config_get(*SAFE)
        for name, value in SAFE.items():
            found.config_set(name, value)
        wait_until(lambda: not found.info("persistence")["aof_rewrite_in_progress"])
        wait_until(lambda: found.info("replication")["min_slaves_good_slaves"] > 0)
        yield found
        for name, value in before.items():
            found.config_set(name, value)


async def findings(url: str, channel: str | None = None) -> list[str]:
    """Return the problems and notes of the doctor about Redis."""
    app = App(url, channel=channel)
    app.migrate()
    found = await examine(app.operate_context)
    app.close()
    return [
        f"{each.severity}: {each.what}; {each.cure}"
        for each in found
        if each.severity != "ok" and "redis" in each.what.lower()
    ]


CONFIRMED = "?wait_replicas=1"


async def test_a_redis_that_loses_nothing_has_no_finding(pair: RedisGroup, client: Any) -> None:
    assert await findings(pair.master.url + CONFIRMED) == []


@pytest.mark.parametrize(
    ("settings", "options", "expected"),
    [
        (
            {"maxmemory-policy": "allkeys-lru", "maxmemory": 10**9},
            CONFIRMED,
            "problem.*maxmemory-policy allkeys-lru.*tasks that wait are lost.*noeviction",
        ),
        ({"maxmemory-policy": "volatile-ttl"}, CONFIRMED, "note.*is volatile-ttl: if a maxmemory"),
        ({"appendfsync": "everysec"}, CONFIRMED, "note.*each second.*appendfsync always"),
        ({"appendfsync": "no"}, CONFIRMED, "note.*operating system.*appendfsync always"),
        ({"appendonly": "no"}, CONFIRMED, "note.*nothing to disk: a restart loses all tasks"),
        (
            {"appendonly": "no", "save": "3600 1"},
            CONFIRMED,
            r"note.*snapshots only \(save 3600 1\).*appendonly yes",
        ),
        (
            {},
            "",
            "note.*before a replica has them .1 replica is connected.: a failover loses the last ones; add wait_replicas=1",
        ),
        ({"min-replicas-to-write": 0}, "", "note.*cut off.*set min-replicas-to-write 1"),
        ({}, "?wait_replicas=2", "problem.*wait_replicas=2, but 1 replica is connected"),
    ],
)
async def test_a_setting_that_may_lose_tasks_is_named_with_its_cure(
    pair: RedisGroup, client: Any, settings: dict[str, Any], options: str, expected: str
) -> None:
    for name, value in settings.items():
        client.config_set(name, value)
    (found,) = await findings(pair.master.url + options)
    assert re.search(expected, found), found


async def test_a_redis_without_replicas_is_named(pair: RedisGroup, client: Any) -> None:
    with pair.members[1].operator() as replica:
        replica.replicaof("NO", "ONE")
        client.config_set("min-replicas-to-write", 0)
        wait_until(lambda: not client.info("replication")["connected_slaves"])
        (found,) = await findings(pair.master.url)
    pair.follow(pair.members[1])
    assert "no replica is connected: the loss of the machine loses all tasks" in found


async def test_triggers_are_at_risk_by_eviction_only(
    pair: RedisGroup, client: Any, sqlite_url: str
) -> None:
    client.config_set("appendonly", "no")
    assert await findings(sqlite_url, pair.master.url) == []
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("maxmemory", 10**9)
    (found,) = await findings(sqlite_url, pair.master.url)
    assert found.startswith("problem") and "until its queue is empty" in found


@pytest.mark.parametrize("command", ["-config", "-info", "-config|get"])
async def test_a_configuration_that_may_not_be_read_is_said(
    pair: RedisGroup, client: Any, command: str
) -> None:
    client.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", command)
    url = pair.master.url.replace(f":{pair.password}@", "app:pw@")
    (found,) = await findings(url)
    assert found.startswith("note") and "cannot be read (" in found and "+config|get" in found
    client.acl_deluser("app")
