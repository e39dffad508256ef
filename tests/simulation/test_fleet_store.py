"""The doubles of a simulated fleet keep the promises of the ports."""

from __future__ import annotations

import asyncio
import random

import pytest

from fairlead.ports.task_store import TaskStore
from fairlead.testing.contract.claims import *  # noqa: F403
from fairlead.testing.contract.insertion import *  # noqa: F403
from fairlead.testing.contract.lane_reads import *  # noqa: F403
from fairlead.testing.contract.tasks import make, submit
from tests.simulation.fleet_store import Link, Machine


@pytest.fixture
def machine() -> Machine:
    return Machine(random.Random(1))


@pytest.fixture
def store(machine: Machine) -> TaskStore:
    return machine.connections(Link(machine)).store


async def test_no_call_of_a_dead_process_comes_back(machine: Machine) -> None:
    link = Link(machine)
    dead, other = machine.connections(link), machine.connections(Link(machine))
    machine.end(link)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await dead.store.heartbeat("node", 1)
    submit(other.store, make(1))
