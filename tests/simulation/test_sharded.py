"""The sharded queue under any order of commands: the race of the published queue, and random
schedules.

A failure prints the schedule and its last steps. FAIRLEAD_SEED repeats a whole run;
FAIRLEAD_SCHEDULES sets the number of schedules.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

redis = pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.sharded import (
    SyncShardedQueue,
    script,
)
from fairlead.sharded.script import Script  # noqa: E402
from fairlead.sharded.settings import ShardedSettings  # noqa: E402
from fairlead.sharded.steps import QueueSteps, RunScript, Steps, WaitForEntry  # noqa: E402
from tests import tiers  # noqa: E402
from tests.simulation.sharded_simulation import Broken, Simulation  # noqa: E402

SEED = tiers.seed()
SCHEDULES = int(os.environ.get("FAIRLEAD_SCHEDULES") or 100)
TRIES = 100
"""Number of the schedules that detect a deliberate fault, the same in every run."""


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as found:
        yield found


# the race of the published queue ------------------------------------------------------------------


def advance(client: Any, steps: Steps[Any], run: RunScript) -> Any:
    """Pass the response of a command to the reader; return its next command, or the message."""
    found = client.eval(run.script.text, 1, run.key, *run.arguments)
    try:
        return steps.send(found)
    except StopIteration as end:
        return end.value


@pytest.mark.parametrize("reads", ["streams", "tenants"])
def test_a_write_between_a_readers_check_and_its_wait_wakes_the_reader(
    redis_url, client, reads
) -> None:
    settings = ShardedSettings("q", reads, 16, 2, 1000.0, 10.0, 5)
    queue = QueueSteps(settings, lambda: 0.0)
    readers = [queue.read("g", f"c{n}", 3600.0, None) for n in range(4)]
    waits = []
    for reader in readers:
        wait = advance(client, reader, next(reader))
        assert isinstance(wait, WaitForEntry), "no message is ready yet"
        waits.append(wait)
    with SyncShardedQueue(redis_url, "q", streams=16, streams_per_shard=2) as writer:
        written = {writer.write({"n": n}) for n in range(2)}
    got, waiting = set(), []
    for reader, wait in zip(readers, waits, strict=True):
        # The blocking call reaches Redis only now.
        assert client.xread(wait.after, count=1, block=60_000), (
            "the reader would wait in spite of a message"
        )
        after = advance(client, reader, reader.send(True))
        if isinstance(after, WaitForEntry):
            waiting.append(after)
        else:
            got.add(after.id)
    assert got == written
    assert len(waiting) == 2
    assert not any(client.xread(wait.after, count=1) for wait in waiting), (
        "the other readers wait, because no message is ready"
    )


# schedules ----------------------------------------------------------------------------------------


def test_no_order_of_commands_loses_or_doubles_a_message_or_lets_a_reader_wait_beside_one(
    client,
) -> None:
    print(f"FAIRLEAD_SEED={SEED}")
    counts: Counter[str] = Counter()
    for seed in range(SEED, SEED + SCHEDULES):
        simulation = Simulation(seed, client)
        try:
            simulation.run()
        except Broken as broken:
            pytest.fail(f"FAIRLEAD_SEED={SEED}: {broken}", pytrace=False)
        counts += simulation.counts
        client.flushdb()
    print(f"{SCHEDULES} schedules: {dict(counts)}")


class WaitsFromStartOfWait(QueueSteps):
    """The reader waits from the start of its wait instead of from its check."""

    def _waiting(self, found: Any, seconds: float) -> WaitForEntry:
        after = super()._waiting(found, seconds).after
        return WaitForEntry(dict.fromkeys(after, "999999999999999-0"), 1000)


class NeverReclaims(QueueSteps):
    """Messages of dead consumers are never reclaimed."""

    def reclaim(self, group: str, consumer: str, min_idle: float, count: int) -> Any:
        return super().reclaim(group, consumer, 1e9, count)


class ReclaimsFromLiveConsumers(QueueSteps):
    """Messages are reclaimed at once, even from live consumers."""

    def reclaim(self, group: str, consumer: str, min_idle: float, count: int) -> Any:
        return super().reclaim(group, consumer, 0.0, count)


@pytest.mark.parametrize("kind", [WaitsFromStartOfWait, NeverReclaims, ReclaimsFromLiveConsumers])
def test_a_deliberate_fault_in_the_steps_is_detected(client, kind) -> None:
    assert_detected(client, kind)


BROKEN = {
    "a shrink removes streams with messages": ("WRITE", "if left == 0 then", "if true then"),
    "notifications expire before any reader has read them": (
        "WRITE",
        "'MINID', '~', integer(now - 60000), '*', 'in'",
        "'MINID', integer(now + 60000), '*', 'in'",
    ),
    "no reader is notified": ("WRITE", "\nnotify(ttl)", "\n"),
    "a larger number of streams is not stored": (
        "WRITE",
        "count = grow(count, wanted)",
        "grow(2, wanted)",
    ),
    "a reader that was woken once checks no stream again": (
        "READ",
        "known[3] == seen and",
        "known[3] and",
    ),
    "the default stream is never visited": ("READ", "slots = count + 1", "slots = count"),
    "deadlines are ignored": ("READ", "if not is_past_deadline(entry[2])", "if true"),
    "a new group skips the messages that are already there": (
        "READ",
        "its_group, '0')",
        "its_group, '$')",
    ),
    "a tenant loses its place with its first message": (
        "READ",
        "{tag = tag, waits = follows}",
        "{tag = tag, waits = false}",
    ),
    "messages that were written since the last read do not come into the index": (
        "READ",
        "(known[7] == latest and {} or written_since(known[7]))",
        "{}",
    ),
    "a reader by streams ignores the index": (
        "READ",
        "if has_index or by_tenants then read_index() end",
        "if by_tenants then read_index() end",
    ),
    "a message that waits can be acknowledged": (
        "ACK",
        "if holders[id] == WAITING then holders[id] = nil end",
        "",
    ),
    "a due message is not written into its stream": (
        "READ",
        "        put(streams, fields)\n",
        "",
    ),
    "the second message of a batch is claimed and not returned": (
        "READ",
        "    taken[#taken + 1] = {",
        "    taken[math.min(#taken, 1) + 1] = {",
    ),
    "a reclaim takes messages that are not idle": (
        "RECLAIM",
        "if each[3] >= min_idle and not is_nobody",
        "if not is_nobody",
    ),
    "a dead letter is not kept": (
        "RECLAIM",
        "        bury(stream, id, entry[2], deliveries)\n",
        "",
    ),
    "an extended claim becomes idle": (
        "EXTEND",
        "    held[#held + 1] = 'JUSTID'\n    if #held > 1",
        "    held[#held + 1], held[#held + 2], held[#held + 3] = 'IDLE', 7200000, 'JUSTID'\n"
        "    if #held > 3",
    ),
    "a cordoned message is not kept": (
        "CORDON",
        "return copy\nend",
        "redis.call('XDEL', prefix .. 'cordoned', copy[1])\n    return copy\nend",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_deliberate_fault_in_a_script_is_detected(client, monkeypatch, fault) -> None:
    name, right, wrong = BROKEN[fault]
    broken = Script(*getattr(script, name).names)
    assert broken.text.count(right) == 1
    broken.text = broken.text.replace(right, wrong)
    broken.sha = "0" * 40
    monkeypatch.setattr(script, name, broken)
    assert_detected(client, QueueSteps)


def assert_detected(client: Any, kind: type[QueueSteps]) -> None:
    with pytest.raises(Broken) as found:
        for seed in range(TRIES):
            client.flushdb()
            Simulation(seed, client, kind).run()
    print(str(found.value).partition("\n")[0])
