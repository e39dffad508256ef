"""The Kafka channel brings every committed task to the node, though rows commit in any order, reads are
slow, and messages are lost, doubled, late and reordered. A failure prints the seed of its schedule."""

from __future__ import annotations

import asyncio
import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.clock import SYSTEM_CLOCK
from fairlead.model import LaneKey, PartitionKey, Trigger
from fairlead.ports.notification import Lane, Notification
from tests import builders, tiers
from tests.ids import id_of

kafka = pytest.importorskip("fairlead.backends.kafka.channel", reason="needs the extra kafka")
receiver = pytest.importorskip("fairlead.backends.kafka.receiver")

PARTITION = PartitionKey("mail", 0)
PATIENCE = 3.0
"""Seconds after which the test treats a task as lost, so that it cannot hang."""


class Rows:
    """Rows of the lanes; a read sees the commits up to a random moment of its run."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.committed: dict[LaneKey, dict[int, Trigger]] = {}
        self.database = SimpleNamespace(read=self._read)

    def ready(self, lane: LaneKey, above: int, limit: int) -> tuple[LaneKey, int, int]:
        return lane, above, limit

    def lanes(self) -> None:
        return None

    async def _read(self, wanted: tuple[LaneKey, int, int] | None) -> list[Any]:
        if wanted is None:
            return [lane for lane, rows in self.committed.items() if rows]
        lane, above, limit = wanted
        await self.a_while()
        rows = sorted(self.committed.get(lane, {}).items())
        await self.a_while(30)
        return [trigger for seq, trigger in rows if seq > above][:limit]

    async def a_while(self, most: int = 6) -> None:
        for _ in range(self._chance.randrange(most)):
            await asyncio.sleep(0)


class Node:
    """A node that receives triggers while it has room, and claims and drops each some time later."""

    def __init__(self, channel: Any, rows: Rows, chance: random.Random) -> None:
        self._channel, self._rows, self._chance = channel, rows, chance
        self._waiting: dict[str, Trigger] = {}
        self.received: set[str] = set()
        self.news = asyncio.Event()

    def ahead(self, lane: LaneKey) -> int:
        return self._chance.choice([0, 1, 3, 10]) if len(self._waiting) < 8 else 0

    def behind(self, lane: LaneKey) -> int:
        return 5

    def reads_by_key(self, lane: LaneKey) -> bool:
        return False

    async def receive(self) -> None:
        while True:
            for trigger in await self._channel.receive(self):
                if trigger.id not in self._waiting:
                    self._waiting[trigger.id] = trigger
                    self.received.add(trigger.id)
            self.news.set()
            await asyncio.sleep(0)

    async def claim(self) -> None:
        while True:
            await self._rows.a_while(20)
            await asyncio.sleep(0)
            if self._waiting:
                trigger = self._waiting.pop(self._chance.choice(list(self._waiting)))
                for lane in self._rows.committed.values():
                    if lane.get(trigger.seq, trigger).id == trigger.id:
                        lane.pop(trigger.seq, None)
                self._channel.settled([trigger])
            self._channel.room_freed()


def begin(channel: Any) -> None:
    """Own the partition without the sweep of a new partition."""
    channel.assign({PARTITION: {}})
    for lane in channel._lanes.values():
        lane.sweep_seq = None


def made(chance: random.Random) -> tuple[Any, Any, Any]:
    """Return rows, a channel that has gained the partition, and a node on both."""
    rows, notifier = Rows(chance), SimpleNamespace(notify=lambda notification: None)
    channel = kafka.KafkaChannel(
        "kafka://nowhere:1/", rows, notifier, {}, lambda what, count: None, SYSTEM_CLOCK
    )
    channel._gained([PARTITION])
    return rows, channel, Node(channel, rows, chance)


async def run(seed: int, loses: str) -> None:
    """Run one schedule. With `loses` "messages", a submit loses its messages or its notification, but not
    both; with "anything", also both."""
    chance = random.Random(seed)
    rows, channel, node = made(chance)
    expected: set[str] = set()
    seqs = iter(range(1, 1 << 30))
    offsets = iter(range(1 << 30))

    async def submit(number: int) -> None:
        """Take positions, then commit, then announce, with pauses in between."""
        await rows.a_while(60)
        priority = chance.choice([3, 5])
        lane = LaneKey(*PARTITION, priority)
        triggers = [
            builders.trigger(id_of(number << 64 | n), "send", seq=next(seqs), **lane._asdict())
            for n in range(chance.choice([1, 1, 2, 7]))
        ]
        expected.update(each.id for each in triggers)
        await rows.a_while(30)
        rows.committed.setdefault(lane, {}).update({each.seq: each for each in triggers})
        news = Lane(*lane, triggers[0].seq)
        fate = chance.random()
        if fate > 0.15 or (loses == "messages" and fate < 0.05):
            await rows.a_while(20)
            if fate > 0.2:
                channel._on_any_notification(Notification(ready=[news]))
        if loses == "messages" and fate > 0.2 and chance.random() < 0.2:
            return  # the notification has no message to wait for
        # A message sent long ago, from a skipped position, is left to the sweeps.
        at = time.time() - (chance.choice([0, 100]) if loses == "anything" else 0)
        for content in triggers if chance.random() < 0.9 else [news]:
            for _ in range(chance.choice([1, 1, 1, 2])):
                if loses == "anything" and chance.random() < 0.2:
                    continue
                await rows.a_while(8)
                channel._received([receiver.Received(PARTITION, next(offsets), at, content)])

    async with asyncio.TaskGroup() as group:
        parts = [group.create_task(node.receive()), group.create_task(node.claim())]
        begin(channel)
        while chance.random() < 0.5 or any(lane.is_behind for lane in channel._lanes.values()):
            await asyncio.sleep(0)
        for submitting in [
            group.create_task(submit(number)) for number in range(chance.choice([1, 2, 3, 5, 12]))
        ]:
            await submitting
        try:
            async with asyncio.timeout(PATIENCE):
                while expected - node.received:
                    node.news.clear()
                    await node.news.wait()
                while channel._progress._held:  # until the last trigger is claimed
                    await asyncio.sleep(0)
        except TimeoutError:
            lost = sorted(expected - node.received)
            held = list(channel._progress._held)
            raise AssertionError(
                f"seed {seed}: never received {lost}, never done with {held}"
            ) from None
        finally:
            for part in parts:
                part.cancel()
    last = next(offsets) - 1
    offsets_held = channel._progress._offsets[PARTITION]
    assert last < 0 or offsets_held.position == last + 1, (
        f"seed {seed}: offsets are held at {offsets_held.position}"
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "GRACE", 0.01)
    monkeypatch.setattr(kafka, "MOST_GRACE", 0.05)
    monkeypatch.setattr(kafka, "MOST_ARRIVED", 12)
    monkeypatch.setattr("fairlead.backends.sql.channel.PAGE", 4)


@pytest.mark.parametrize("loses, heal_every", [("messages", 1e9), ("anything", 0.05)])
async def test_every_committed_task_reaches_the_node_whatever_messages_are_lost(
    monkeypatch: pytest.MonkeyPatch, loses: str, heal_every: float
) -> None:
    """Without sweeps, either the messages or the notification of each submit arrive; with sweeps, both
    may be lost."""
    monkeypatch.setattr(kafka.KafkaChannel, "_heal_every", heal_every)
    first = tiers.seed()
    for seed in range(first, first + tiers.examples(300)):
        await run(seed, loses)


async def test_an_older_read_under_way_does_not_skip_a_message_that_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A read has seen row 10 and not yet row 5, which Kafka announces. Then a notification of row 20
    causes another read of the lane, which must not skip row 5."""
    monkeypatch.setattr(kafka.KafkaChannel, "_heal_every", 1e9)
    chance, lane = random.Random(1), LaneKey(*PARTITION, 5)
    rows, channel, node = made(chance)
    node.ahead = lambda lane: 10  # type: ignore[method-assign]
    triggers = {
        seq: builders.trigger(id_of(seq), "send", seq=seq, **lane._asdict()) for seq in (5, 10, 20)
    }
    has_seen, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(wanted: tuple[LaneKey, int, int] | None) -> list[Any]:
        if wanted is None:
            return list(rows.committed)
        found = sorted(rows.committed.get(wanted[0], {}).items())
        if wanted[0] == lane and found:
            has_seen.set()
            await may_answer.wait()
        return [trigger for seq, trigger in found if seq > wanted[1]][: wanted[2]]

    rows.database.read = slow
    async with asyncio.TaskGroup() as group:
        receiving = group.create_task(node.receive())
        rows.committed[lane] = {10: triggers[10]}
        begin(channel)
        await has_seen.wait()
        rows.committed[lane] = dict(triggers)
        channel._read_again(Lane(*lane, 20))
        channel._received([receiver.Received(PARTITION, 0, time.time(), triggers[5])])
        may_answer.set()
        async with asyncio.timeout(PATIENCE):
            while len(node.received) < 3:
                node.news.clear()
                await node.news.wait()
        receiving.cancel()
