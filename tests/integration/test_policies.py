"""Running workers apply published weights and limits with their next heartbeat, and drop them when
they are switched off, without a restart."""

from __future__ import annotations

import asyncio

import pytest

from fairlead import App
from fairlead.operate.policies import PolicyManagement
from fairlead.operate.store.policies import PolicyDraft, SwitchMode
from fairlead.testing import running, settled
from tests.waiting import until

pytestmark = [pytest.mark.ordered, pytest.mark.stores, pytest.mark.virtual_time]

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
        """Submit a task for each of the keys while the slot is taken, and return the order of their runs."""
        self.close()
        async with asyncio.timeout(SOON):
            await until(lambda: node.in_flight)
            self.push(keys)
            await until(lambda: len(node.parts.intake._known) >= len(keys))
        before = len(self.ran)
        self.opened.set()
        await settled(self.app, node)
        return "".join(self.ran[before + 1 :])


async def until_weights(node, weights: dict[str, float]) -> None:
    await until(lambda: node.parts.intake.lanes.sharing.weights["q"] == weights)


async def test_a_running_worker_applies_published_weights_until_they_are_switched_off(
    app: App,
) -> None:
    gate, policies = Gate(app), PolicyManagement(app.operate_context)
    async with running(app, concurrency=1) as node:
        # The lane exists before any weight.
        assert await gate.order_of(node, "aaaaabbbbb") == "ababababab"
        version = await asyncio.to_thread(policies.publish, draft(b=3.0), None)
        await until_weights(node, {"b": 3.0})
        order = await gate.order_of(node, "aaaaabbbbbb")
        while_both_wait = order[: order.rindex("b") + 1]
        parts = [
            while_both_wait[start:end]
            for end in range(len(while_both_wait) + 1)
            for start in range(end)
        ]
        assert max(abs(p.count("a") - p.count("b") / 3) for p in parts) <= 1 + 1 / 3, order
        policy = policies.policy(version)
        await asyncio.to_thread(policies.roll_back, policy, 0, "ann", "too much")
        await until_weights(node, {})
        assert await gate.order_of(node, "aaaabbbb") in ("abababab", "babababa")
        await asyncio.to_thread(policies.publish, draft(a=4.0), version + 1)
        await until_weights(node, {"a": 4.0})
        await asyncio.to_thread(policies.switch, SwitchMode.OFF, "ann", "a test")
        await until_weights(node, {})
        assert await gate.order_of(node, "aaaabbbb") in ("abababab", "babababa")


async def test_a_node_without_notifications_loads_new_weights_with_its_heartbeat(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command runs on another machine, and its notification is lost."""
    Gate(app)
    policies = PolicyManagement(app.operate_context)
    async with running(app, concurrency=1) as node:
        monkeypatch.setattr(node.parts, "on_notification", lambda notification: None)
        monkeypatch.setattr(type(app.store), "announce", lambda self, notification: iter(()))
        monkeypatch.setattr(PolicyManagement, "_announce", lambda self: None)
        await asyncio.to_thread(policies.publish, draft(b=3.0), None)
        await until_weights(node, {"b": 3.0})


def draft(**guarded: float) -> PolicyDraft:
    return PolicyDraft(queue="q", author="ann", why="test", computed_at=1, guarded=guarded)
