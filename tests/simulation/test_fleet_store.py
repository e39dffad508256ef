"""The doubles of a simulated fleet keep the promises of the ports."""

from __future__ import annotations

import asyncio
import random

import pytest

from fairlead.connections import Connections
from fairlead.ports.notification import Notification
from fairlead.ports.task_store import TaskStore
from fairlead.testing.contract.task_store import *  # noqa: F403
from fairlead.testing.contract.tasks import make, submit
from tests.simulation.fleet_loop import Process, current_process
from tests.simulation.fleet_store import Link, Machine


@pytest.fixture
def machine() -> Machine:
    return Machine(random.Random(1))


@pytest.fixture
def store(machine: Machine) -> TaskStore:
    return machine.connections(Link(machine)).store


def process(machine: Machine) -> tuple[Link, Connections]:
    """Return the link and the adapters of a new process."""
    link = Link(machine)
    return link, machine.connections(link)


# presence -----------------------------------------------------------------------------------------


async def test_a_killed_process_has_released_its_lock(machine: Machine) -> None:
    (held_by, held), (_, one), (_, two) = process(machine), process(machine), process(machine)
    assert held.presence and one.presence and two.presence
    await held.presence.hold("node#1", lambda: None)
    assert await one.presence.released(["node#1"]) == set()
    machine.end(held_by)
    for each in (one, two):
        assert each.presence is not None
        assert await each.presence.released(["node#1", "other"]) == {"node#1"}


async def test_a_node_that_has_left_is_not_dead(machine: Machine) -> None:
    (_, one), (_, two) = process(machine), process(machine)
    assert one.presence and two.presence
    await one.presence.hold("node", lambda: None)
    await one.presence.close()
    assert await two.presence.released(["node", "unknown"]) == set()


# notifier and store -------------------------------------------------------------------------------


async def test_a_notification_reaches_the_listener_in_its_own_process(machine: Machine) -> None:
    (link, listening), (_, sending) = process(machine), process(machine)
    received: list[tuple[Notification, Process | None]] = []
    heard = asyncio.Event()

    def on_notification(notification: Notification) -> None:
        received.append((notification, current_process()))
        heard.set()

    await listening.notifier.listen(on_notification)
    sent = Notification(control=True)
    sending.notifier.notify(sent)
    await heard.wait()
    assert received == [(sent, link.process)]


async def test_no_call_of_a_dead_process_comes_back(machine: Machine) -> None:
    (link, dead), (_, other) = process(machine), process(machine)
    machine.end(link)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await dead.store.heartbeat("node", 1)
    submit(other.store, make(1))
