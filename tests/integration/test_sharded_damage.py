"""The sharded queue with foreign data in its keys, on a full server, and with malformed entries of
other writers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

redis = pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.sharded import Empty, QueueDamaged, SyncShardedQueue  # noqa: E402
from tests.sharded_queues import ago, bury, drain  # noqa: E402

KEYS = (
    "meta",
    "notifications",
    "groups",
    "deadlines",
    "cordoned",
    "dead",
    "dead:heads",
    "dead:names",
    "weights",
    "passes:one",
    "tenants:one",
    "waiting:one",
    "s0",
    "s3",
)


class UsedQueue:
    """A queue of two groups with data in each of its keys: waiting, claimed, dead and cordoned
    messages, and weights of tenants."""

    def __init__(self, url: str) -> None:
        self.queue = SyncShardedQueue(
            url, "q", streams=4, streams_per_shard=2, reads="tenants", max_deliveries=2
        )
        for group in ("one", "two"):
            with pytest.raises(Empty):
                self.queue.read(group, "c")
        self.written = [
            self.queue.write({"n": n}, shard_key=f"k{n % 4}", deadline=ago(hours=-1))
            for n in range(12)
        ]
        self.held = [self.queue.read("one", "c").id for _ in range(4)]
        for _ in range(2):
            self.queue.reclaim("one", "d", min_idle=0, count=1)
        self.written += [
            self.queue.write({"n": 1}, shard_key="late", deadline=ago(hours=1)) for _ in range(2)
        ]
        self.queue.cordon(count=1)
        self.queue.set_weight("k1", 2.0)

    def calls(self) -> dict[str, Callable[[], object]]:
        queue = self.queue
        return {
            "write": lambda: queue.write({"n": 9}, shard_key="k1", deadline=ago(hours=-1)),
            "read": lambda: queue.read("one", "c"),
            "read for the other group": lambda: queue.read("two", "c"),
            "ack": lambda: queue.ack("one", *self.held[2:]),
            "reclaim": lambda: queue.reclaim("one", "e", min_idle=0),
            "cordon": queue.cordon,
            "set_weight": lambda: queue.set_weight("k2", 3.0),
            "stats": lambda: queue.stats("one"),
            "details": lambda: queue.details("one"),
            "dead_letter_heads": queue.dead_letter_heads,
            "nack": lambda: queue.nack("one", "c", *self.held[2:]),
            "cordoned": queue.cordoned,
        }

    def found(self) -> set[str]:
        """Return the ids of all messages that the other group can still get or that were removed."""
        ids = {message.id for message in drain(self.queue, "two", "last", ack=False)}
        for _ in range(2):
            ids |= {
                message.id for message in self.queue.reclaim("two", "last", min_idle=0, count=100)
            }
        return ids | {each.id for each in (*self.queue.cordoned(), *self.queue.dead_letter_heads())}


@pytest.mark.parametrize("name_of_key", KEYS)
def test_no_message_is_lost_while_any_one_key_holds_foreign_data(
    redis_url, client, name_of_key
) -> None:
    key, refused = f"{{q}}:{name_of_key}", 0
    for name in UsedQueue(redis_url).calls():
        client.flushdb()
        used = UsedQueue(redis_url)
        kept = client.dump(key)
        client.set(key, "somebody's")
        try:
            used.calls()[name]()
        except QueueDamaged as damaged:
            refused += 1
            if name_of_key.startswith("s"):
                assert key in str(damaged) or name == "ack", name
        client.delete(key)
        if kept is not None:
            client.restore(key, 0, kept)
        assert used.found() >= set(used.written), name
        used.queue.close()
    assert refused


def test_reserved_fields_of_other_writers_do_not_hide_dead_letters(redis_url, client) -> None:
    with SyncShardedQueue(redis_url, "q", max_deliveries=1) as queue:
        client.xadd(
            "q",
            {"n": 1, "fairlead:deliveries": "x", "fairlead:id": b"\xff", "fairlead:context": "{"},
        )
        id = queue.read("g", "c").id
        assert queue.reclaim("g", "c", min_idle=0) == []
        (dead,) = queue.dead_letter_heads()
        assert (dead.id, dead.deliveries, dead.values) == (id, 1, {"n": b"1"})


def test_a_foreign_message_with_too_many_fields_is_copied_with_the_first_of_them(
    redis_url, client
) -> None:
    many = {str(n): n for n in range(4500)}
    with SyncShardedQueue(redis_url, "q", max_deliveries=1) as queue:
        client.xadd("q", many)
        assert len(queue.read("g", "c").values) == 4500
        other = queue.write({"n": 1})
        queue.read("g", "dead")
        assert queue.reclaim("g", "c", min_idle=0) == []
        assert len(queue.dead_letter_heads()) == 2, (
            f"{other} too: one message must not hold back all others"
        )
        client.xadd("q", {"fairlead:deadline": "1", **many})
        with pytest.raises(Empty):
            queue.read("g", "c")
        (cordoned,) = queue.cordoned()
        assert len(cordoned.values) > 3000


def test_a_claim_whose_entry_was_trimmed_can_be_ended(redis_url, client) -> None:
    with SyncShardedQueue(redis_url, "q") as queue:
        for n in range(2):
            client.xadd("q", {"n": n})
        ids = [queue.read("g", "c").id for _ in range(2)]
        written = queue.write({"n": 2})
        ids.append(queue.read("g", "c").id)
        client.xtrim("q", maxlen=1, approximate=False)
        bury(queue, "g", "c", *ids)
        assert [dead.id for dead in queue.dead_letter_heads()] == [ids[1], written]
        assert queue.stats("g").pending == 0
