"""The look-ahead of fifo queues: how many triggers a node holds in memory, and which ones."""

from __future__ import annotations

import asyncio

import pytest

from fairlead import App, State
from fairlead.core.sharding.shares import PartitionShares
from fairlead.testing import running, settled

pytestmark = pytest.mark.virtual_time

SOON = 20.0


async def test_repeated_reads_fill_a_fifo_queue_by_a_page_beyond_its_look_ahead(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks behind the reader are new to the node if a later one arrived first."""
    monkeypatch.setattr("fairlead.engine.intake.AGAIN", 20)
    app = App(sqlite_url)
    app.migrate()
    app.queue("mail", order="fifo", partitions=1)
    ran: list[int] = []
    gate = asyncio.Event()

    @app.task(queue="mail")
    async def send(n: int) -> None:
        await gate.wait()
        most.append(len(node.parts.context.table))
        ran.append(n)

    most: list[int] = []
    async with running(app, look_ahead=100, concurrency=10) as node:
        send.submit_many([{"n": n} for n in range(1000)])
        async with asyncio.timeout(SOON):
            while not app.channel._lanes or node.in_flight < 10:
                await asyncio.sleep(0.01)
        (lane,) = app.channel._lanes.values()
        for _ in range(20):
            lane.read_seq, lane.highest_seq, lane.sweep_seq = 1000, 1000, lane.read_seq
            app.channel.room_freed()
            await asyncio.sleep(1.0)  # of the virtual clock: a page of the sweep
        most.append(len(node.parts.context.table))
        gate.set()
        await settled(app, node)
    assert 100 < max(most) <= 120
    assert sorted(ran) == list(range(1000))


async def test_tasks_that_no_node_knows_cause_no_more_sweeps(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without the handler grants many tasks one after another."""

    async def note(n: int) -> None: ...

    apps = [App(sqlite_url) for _ in range(3)]
    for app in apps:
        app.queue("mail", order="fifo", partitions=1)
    owner, helper, submitter = apps
    owner.task(note, name="old", queue="mail")
    helper.task(note, name="new", queue="mail")
    new, removed = (submitter.task(note, name=name, queue="mail") for name in ("new", "removed"))
    owner.migrate()
    monkeypatch.setattr(PartitionShares, "beyond", lambda *_: [])  # the first owner stays
    async with running(owner, look_ahead=100) as node, running(helper):
        await asyncio.sleep(SOON)
        assert node.parts.ownership.owned
        removed.submit_many([{"n": n} for n in range(10)])
        await asyncio.sleep(SOON)
        sweeps = []
        redeliver = owner.channel.redeliver
        monkeypatch.setattr(owner.channel, "redeliver", lambda: (sweeps.append(1), redeliver()))
        for n in range(50):
            handle = new.submit(n=n)
            async with asyncio.timeout(SOON):
                while handle.state() != State.DONE:
                    await asyncio.sleep(0.01)
    assert not sweeps
    for app in apps:
        app.close()
