"""Computed weights and running workers: taken up with the next heartbeat, given up by the kill switch, no restart."""

from __future__ import annotations

import asyncio

import pytest

from fairlead import App
from fairlead.policy_management import PolicyManagement
from fairlead.ports.policy_store import Draft, SwitchMode
from fairlead.testing import running, settled

pytestmark = [pytest.mark.ordered, pytest.mark.stores]

SOON = 20.0


class Gate:
    """A queue of one partition and one slot, whose tasks wait at a gate and note their keys."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.ran: list[str] = []
        self.opened = asyncio.Event()
        app.queue("q", partitions=1)

        @app.task(queue="q")
        async def note(key: str) -> None:
            if key == "gate":
                await self.opened.wait()
            self.ran.append(key)

        self._note = note

    def push(self, keys: str) -> None:
        self.app.submit_many([self._note.options(fairness_key=key).draft(key=key) for key in keys])

    def close(self) -> None:
        self.opened.clear()
        self._note.options(fairness_key="gate", priority=0).submit(key="gate")

    async def order_of(self, node, keys: str) -> str:
        """In which order these run when they are pushed while the one slot is taken."""
        self.close()
        async with asyncio.timeout(SOON):
            while not node.in_flight:
                await asyncio.sleep(0.01)
            self.push(keys)
            while len(node.intake._known) < len(keys):
                await asyncio.sleep(0.01)
        before = len(self.ran)
        self.opened.set()
        await settled(self.app, node)
        return "".join(self.ran[before + 1 :])


async def heard(node, weights: dict[str, float]) -> None:
    async with asyncio.timeout(SOON):
        while node.backlogs._weights["q"] != weights:
            await asyncio.sleep(0.01)


async def test_a_running_worker_takes_up_what_is_published_and_gives_it_up_when_switched_off(app: App) -> None:
    gate, policies = Gate(app), PolicyManagement(app)
    async with running(app, concurrency=1) as node:
        # The lane is there before any weight is.
        assert await gate.order_of(node, "aaaaabbbbb") == "ababababab"
        version = await asyncio.to_thread(policies.publish, draft(b=3.0), None)
        await heard(node, {"b": 3.0})
        assert await gate.order_of(node, "aaaaabbbbbb") in ("abbbabbbaaa", "babbabbbaaa", "bbabbbabaaa", "abbbbabbaaa")
        policy = policies.policy(version)
        await asyncio.to_thread(policies.roll_back, policy, 0, "ann", "too much")
        await heard(node, {})
        assert await gate.order_of(node, "aaaabbbb") in ("abababab", "babababa")
        await asyncio.to_thread(policies.publish, draft(a=4.0), version + 1)
        await heard(node, {"a": 4.0})
        await asyncio.to_thread(policies.switch, SwitchMode.OFF, "ann", "a test")
        await heard(node, {})
        assert await gate.order_of(node, "aaaabbbb") in ("abababab", "babababa")


async def test_without_the_bell_the_heartbeat_brings_it(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command on another machine, whose wake is lost."""
    Gate(app)
    policies = PolicyManagement(app)
    async with running(app, concurrency=1) as node:
        monkeypatch.setattr(node, "_heard", lambda wake: None)
        monkeypatch.setattr(type(app.store), "announce", lambda self, wake: iter(()))
        monkeypatch.setattr(PolicyManagement, "_announce", lambda self: None)
        await asyncio.to_thread(policies.publish, draft(b=3.0), None)
        await heard(node, {"b": 3.0})


def draft(**guarded: float) -> Draft:
    return Draft(queue="q", author="ann", why="test", computed_at=1, guarded=guarded)
