"""The work of one run of each script of a sharded queue has a bound, whatever the queue holds: messages,
tenants, consumers, claims, messages for later, dead letters, cordoned messages, weights.

A machine may be busy, so the tests count what a script does, not how long it takes: a few lines of
Lua before each script count its commands, and their arguments and the elements of their responses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

redis = pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.errors import StoreUnavailable  # noqa: E402
from fairlead.sharded import (  # noqa: E402
    Empty,
    InvalidMessage,
    NewMessage,
    SyncShardedQueue,
    UnknownMessage,
    running,
    script,
)
from fairlead.sharded.script import Script  # noqa: E402
from tests import tiers  # noqa: E402
from tests.sharded_queues import ago, bury, drain  # noqa: E402

STREAMS = 16
MOST_COMMANDS, MOST_ELEMENTS = 8000, 60_000

COUNTING = """
local real_redis, run_commands, run_elements = redis, 0, 0
local function elements_of(value)
    if type(value) ~= 'table' then return 1 end
    local found = 0
    for _, each in ipairs(value) do found = found + elements_of(each) end
    return found
end
local function counted(how)
    return function(...)
        local found = real_redis[how](...)
        run_commands, run_elements = run_commands + 1, run_elements + select('#', ...) + elements_of(found)
        real_redis.call('ZADD', '{q}:counted:commands', 'GT', run_commands, 'NAME')
        real_redis.call('ZADD', '{q}:counted:elements', 'GT', run_elements, 'NAME')
        return found
    end
end
local redis = {call = counted('call'), pcall = counted('pcall'), error_reply = real_redis.error_reply}
"""


NOTING = """
local real_redis, declared = redis, {}
for _, key in ipairs(KEYS) do declared[key] = true end
local function noted(how)
    return function(...)
        local keys = real_redis.pcall('COMMAND', 'GETKEYS', ...)
        for _, key in ipairs(keys.err and {} or keys) do
            if not declared[key] then real_redis.call('SADD', '{q}:undeclared:NAME', key) end
        end
        return real_redis[how](...)
    end
end
local redis = {call = noted('call'), pcall = noted('pcall'), error_reply = real_redis.error_reply}
"""


class Work(NamedTuple):
    """The work of one run of a script."""

    commands: int
    elements: int


def each_script() -> dict[str, Script]:
    return {name: found for name, found in vars(script).items() if isinstance(found, Script)}


def precede(monkeypatch: pytest.MonkeyPatch, lua: str) -> None:
    """Let every script begin with these lines."""
    for name, found in each_script().items():
        text = lua.replace("NAME", name) + found.text
        monkeypatch.setattr(found, "text", text)
        monkeypatch.setattr(found, "sha", hashlib.sha1(text.encode()).hexdigest())


class World:
    """A queue that holds `size` of everything, for the group g. The group other has read nothing."""

    def __init__(self, url: str, client: Any, reads: Any, size: int) -> None:
        self.size = size
        self.client = client
        self.queue = SyncShardedQueue(
            url, "q", streams=STREAMS, streams_per_shard=4, reads=reads, max_deliveries=2
        )
        self.letters: list[str] = []
        for fill in (self._begin, self._wait, self._bury, self._claim, self._defer):
            fill()

    def write(self, count: int, **options: Any) -> list[str]:
        tenants = max(1, self.size // 2)
        return self.queue.write_many(
            [NewMessage({"n": n}, f"t{n % tenants}", **options) for n in range(count)]
        )

    def read(self, count: int, consumer: str = "c") -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            found += self.queue.read_many("g", consumer, count=min(500, count - len(found)))
        return found

    def _begin(self) -> None:
        for group in ("g", "other"):
            with pytest.raises(Empty):
                self.queue.read(group, "c")

    def _bury(self) -> None:
        for start in range(0, self.size, 500):
            self.letters += self.bury(min(500, self.size - start))

    def _wait(self) -> None:
        self.write(self.size * 4)
        self.queue.set_weight("t0", 2.0)
        weights = {f"t{n}": 1.0 for n in range(self.size // 2)}
        self.client.hset("{q}:weights", mapping=weights)

    def _claim(self) -> None:
        claims = self.read(self.size // 2, "gone")
        self.queue.nack("g", "gone", *(each.id for each in claims[::3]), delay=3600.0)
        self.write(self.size)
        with self.client.pipeline(transaction=False) as pipeline:
            for n in range(self.size // 4):
                streams = {f"{{q}}:s{(n + more) % STREAMS}": ">" for more in range(4)}
                pipeline.xreadgroup("g", f"c{n}", streams, count=1)
                pipeline.zadd("{q}:consumers:g", {f"c{n}": n})
            pipeline.execute()

    def _defer(self) -> None:
        at = datetime.now(UTC) + timedelta(hours=1)
        self.write(self.size, at=at)
        tickets = self.client.zrange("{q}:later", 0, self.size // 2)
        self.client.zadd("{q}:later", dict.fromkeys(tickets, 1))
        self.write(self.size, deadline=ago(hours=-1))
        self.client.zadd(
            "{q}:deadlines", dict.fromkeys(self.client.zrange("{q}:deadlines", 0, -1), 1)
        )
        self.write(self.size // 2, deadline=ago(hours=1))

    def age(self) -> None:
        """Let half of the dead letters and of the cordoned messages be old enough to be dropped."""
        with self.client.pipeline(transaction=False) as pipeline:
            for n in range(self.size):
                pipeline.xadd("{q}:cordoned", {"fairlead:id": "0/1-1", "fairlead:deliveries": 0})
                pipeline.xadd("{q}:notifications", {"in": n % STREAMS})
            pipeline.execute()
        for kept in ("dead", "cordoned"):
            last, _ = self.client.xrange(f"{{q}}:{kept}", count=self.size // 2)[-1]
            self.client.hset("{q}:meta", f"kept:{kept}", " ".join([last.decode()] * 11))
        self.client.hset("{q}:meta", "refreshed", 1)

    # operations -----------------------------------------------------------------------------------

    def operate(self) -> None:
        """Call every operation."""
        for call in self.calls():
            call()

    def calls(self) -> list[Callable[[], Any]]:
        """Return calls of every operation."""
        queue = self.queue
        return [
            lambda: self.write(600),
            lambda: queue.ack("g", *(each.id for each in self.read(600))),
            lambda: queue.nack("g", "c", *(each.id for each in self.read(600)), delay=0.001),
            lambda: queue.extend("g", "gone", *(each.id for each in self.read(600, "gone"))),
            lambda: queue.reclaim("g", "d", min_idle=0, count=600),
            lambda: queue.reclaim("g", "d", min_idle=3600, count=600),
            lambda: self.bury(600),
            lambda: queue.delete(self.write(1)[0]),
            lambda: queue.stats("g"),
            lambda: queue.stats("other"),
            lambda: queue.details("g", count=200),
            lambda: queue.cordon(count=600),
            lambda: queue.cordoned(count=600),
            lambda: queue.dead_letter_heads(count=600),
            lambda: queue.dead_letter(self.letters[-1]),
            lambda: queue.requeue_dead_letters(*self.letters[-300:]),
            lambda: queue.delete_dead_letters(*self.letters[-600:]),
            lambda: queue.set_weight("t0", 3.0),
            lambda: queue.read("g", "c", prefer_stream=3),
            lambda: queue.read_many("other", "c", count=500),
            lambda: queue.drop_group("other"),
            self.age,
            lambda: self.write(1),
        ]

    def bury(self, count: int) -> list[str]:
        """Make messages dead letters, and return their ids."""
        ids = [each.id for each in self.read(count)]
        bury(self.queue, "g", "c", *ids)
        return ids

    def work(self) -> dict[str, Work]:
        """Return the greatest work of one run of each script."""
        commands, elements = (
            {
                name.decode(): int(most)
                for name, most in self.client.zrange(key, 0, -1, withscores=True)
            }
            for key in ("{q}:counted:commands", "{q}:counted:elements")
        )
        return {name: Work(commands[name], elements[name]) for name in commands}


@pytest.fixture
def measured(
    redis_url: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Any, int], dict[str, Work]]]:
    """Return a function that measures all scripts on a queue of a size."""

    def measure(reads: Any, size: int) -> dict[str, Work]:
        client.flushdb()
        world = World(redis_url, client, reads, size)
        with monkeypatch.context() as patched:
            precede(patched, COUNTING)
            world.operate()
        world.queue.close()
        return world.work()

    yield measure


@pytest.mark.parametrize("reads", ["streams", "tenants"])
@pytest.mark.parametrize(
    "sizes", [(1000, 3000), pytest.param((10_000, 30_000), marks=tiers.NIGHTLY("a long run"))]
)
def test_no_run_of_a_script_does_more_for_a_larger_queue(measured, reads, sizes) -> None:
    small, large = (measured(reads, size) for size in sizes)
    for name in sorted(large):
        print(name, *small[name], *large[name])
    assert set(large) == set(each_script())
    for name, work in large.items():
        assert work.commands <= min(MOST_COMMANDS, 2 * small[name].commands + 100), name
        assert work.elements <= min(MOST_ELEMENTS, 2 * small[name].elements + 500), name


@pytest.mark.parametrize("reads", ["streams", "tenants"])
def test_a_client_of_a_cluster_names_the_keys_of_every_script(
    redis_url, client, monkeypatch, reads
) -> None:
    """A script that touches another key might be refused in the middle while its slot moves."""
    world = World(redis_url, client, reads, 600)
    precede(monkeypatch, NOTING)
    monkeypatch.setattr(running, "is_cluster", lambda redis: True)
    world.operate()
    world.queue.close()
    found = {
        (key.decode().rpartition(":")[2], name.decode())
        for key in client.scan_iter("{q}:undeclared:*")
        for name in client.smembers(key)
    }
    print(*sorted(found), sep="\n")
    # Scripts without the names of the groups do without these keys if the server refuses them.
    assert found == {("CORDON", "{q}:waiting:g"), ("DELETE", "{q}:waiting:g")}


# what a bound must not break ----------------------------------------------------------------------


@pytest.fixture
def queue(redis_url: str) -> Iterator[SyncShardedQueue]:
    with SyncShardedQueue(redis_url, "q", streams=4, streams_per_shard=2) as made:
        yield made


@pytest.mark.parametrize(("consumers", "count"), [(20, 9), (600, 1000)])
@pytest.mark.parametrize("reads", ["streams", "tenants"])
def test_reclaims_get_every_claim_once_however_many_there_are(
    redis_url, client, reads, consumers, count
) -> None:
    with SyncShardedQueue(redis_url, "q", reads=reads, streams=4, streams_per_shard=2) as queue:
        written = queue.write_many([NewMessage({"n": n}, f"k{n % 9}") for n in range(1300)])
        for n in range(consumers):
            queue.read("g", f"c{n}")
        queue.read_many("g", "c0", count=500)
        waiting = queue.stats("g").waiting
        assert waiting == 1300 - 500 - consumers
        found = [
            each.id
            for _ in range(3)
            for each in queue.reclaim("g", "d", min_idle=3600, count=count)
        ]
        assert found == []
        while part := queue.reclaim("g", "d", min_idle=0, count=count):
            queue.ack("g", *(each.id for each in part))
            found += [each.id for each in part]
        assert len(found) == len(set(found)) == 500 + consumers
        assert set(found) <= set(written)
        stats = queue.stats("g")
        assert (stats.pending, stats.waiting, stats.messages) == (0, waiting, waiting)


def test_a_group_whose_removal_was_interrupted_is_removed_by_another_call(queue, client) -> None:
    for group in ("g", "other"):
        with pytest.raises(Empty):
            queue.read(group, "c")
    queue.write_many([NewMessage({"n": n}, f"k{n % 9}") for n in range(1300)])
    for _ in range(3):
        queue.ack("g", *(each.id for each in queue.read_many("g", "c", count=500)))
    queue.read_many("other", "c", count=500)
    assert queue.len() == 1300
    steps = queue._steps.drop_group("other")
    first = next(steps)
    client.eval(first.script.text, 1, first.key, *first.arguments)
    assert 0 < queue.len() < 1300
    dropped = queue.len()
    assert queue.drop_group("other") == dropped
    assert queue.len() == 0
    groups = [
        each["name"] for key in client.keys("{q}:s[0-9]*") for each in client.xinfo_groups(key)
    ]
    assert set(groups) == {b"g"}


@pytest.mark.parametrize("seconds", [-1.0, 1e10, 1e300, float("inf"), float("nan")])
def test_a_time_that_redis_cannot_store_is_refused_before_anything_changes(
    queue, client, seconds
) -> None:
    id = queue.write({"n": 1})
    queue.read("g", "c")
    for call in (
        lambda: queue.nack("g", "c", id, delay=seconds),
        lambda: queue.reclaim("g", "d", min_idle=seconds),
        lambda: queue.cordon(window=seconds),
    ):
        with pytest.raises(InvalidMessage, match="and at most"):
            call()
    assert queue.ack("g", id) == 1


def test_ids_beyond_the_precise_numbers_keep_a_message_for_a_slower_group(queue, client) -> None:
    ids = [f"5-{2**64 - 3 + n}" for n in range(2)]
    for id in ids:
        client.xadd("q", {"n": 1}, id=id)
    client.xgroup_create("q", "slow", "0")
    client.xreadgroup("slow", "c", {"q": ">"}, count=1)
    client.xack("q", "slow", ids[0])
    for _ in range(2):
        queue.ack("g", queue.read("g", "c").id)
    assert [id.decode() for id, _ in client.xrange("q")] == ids[1:]


@pytest.mark.parametrize("reads", ["streams", "tenants"])
def test_a_group_that_has_not_read_yet_empties_a_full_server(redis_url, client, reads) -> None:
    queue = SyncShardedQueue(redis_url, "q", streams=STREAMS, streams_per_shard=4, reads=reads)
    queue.write_many([NewMessage({"n": n}, f"t{n}") for n in range(30)])
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable):
            queue.write({"n": 30})
        found = drain(queue)
    finally:
        client.config_set("maxmemory", 0)
    assert sorted(int(each.values["n"]) for each in found) == list(range(30))


def test_a_full_server_leaves_the_queue_as_it_was_or_does_the_whole(redis_url, client) -> None:
    def contents() -> dict[bytes, bytes]:
        return {key: client.dump(key) for key in client.scan_iter("*")}

    world = World(redis_url, client, "tenants", 60)
    world.age()
    refused = 0
    for call in world.calls():
        if call == world.age:
            continue
        before = contents()
        client.config_set("maxmemory", 1)
        try:
            call()
        except StoreUnavailable:
            refused += 1
            client.config_set("maxmemory", 0)
            assert contents() == before
        except (Empty, UnknownMessage):
            pass
        finally:
            client.config_set("maxmemory", 0)
    assert refused >= 5
