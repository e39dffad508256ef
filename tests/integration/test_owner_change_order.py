"""A change of owner of a fair lane with more keys than its record has: no new task overtakes an
older one of its key, a new key does not wait, and keys go on in turns."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from fairlead import App
from fairlead.testing import running
from tests.tiers import NIGHTLY

pytestmark = [pytest.mark.ordered, pytest.mark.virtual_time]

SOON = 600.0
KEYS = 1500
EACH = 6
LATER = 100
"""Keys that get one more task after the change."""
MOST_WAITED = KEYS // 5
"""Starts of other keys, at most, before the first one of a new key."""


class Queue:
    """A queue that notes the key and the number of each task that runs."""

    def __init__(self, url: str, **channels: str) -> None:
        """`channels`: the channel or the backlog, if not in the database."""
        self._url, self._channels = url, channels
        self.ran: list[tuple[str, int]] = []

    def make(self) -> App:
        """Return an application of one process."""
        app = App(self._url, **self._channels)
        app.queue("q", partitions=1)

        @app.task(queue="q")
        async def note(key: str, number: int) -> None:
            self.ran.append((key, number))
            await asyncio.sleep(0.01)

        self.note = note
        return app

    def submit(self, app: App, tasks: list[tuple[str, int]]) -> None:
        app.submit_many(
            [self.note.options(fairness_key=key).draft(key=key, number=n) for key, n in tasks]
        )

    async def started(self, count: int) -> None:
        async with asyncio.timeout(SOON):
            while len(self.ran) < count:
                await asyncio.sleep(0.01)

    async def change_owner(self, keys: list[str]) -> None:
        """Run tasks of all keys; change the owner once each key has had about one; check what the
        new owner runs."""
        app = self.make()
        app.migrate()
        self.submit(app, [(key, n) for n in range(EACH) for key in keys])
        async with running(app, concurrency=10, look_ahead=500):
            await self.started(KEYS)
        app.close()
        before = len(self.ran)
        app = self.make()
        async with running(app, concurrency=10, look_ahead=500):
            await self.started(before + 200)
            later = keys[:: KEYS // LATER]
            new = [("new", 0), ("new", 1)]
            await asyncio.to_thread(self.submit, app, [*new, *((key, EACH) for key in later)])
            arrived = len(self.ran)
            await self.started(KEYS * EACH + len(later) + 2)
        app.close()
        self._check(before, arrived)

    def _check(self, before: int, arrived: int) -> None:
        """`before`: starts before the change. `arrived`: starts when the new key came."""
        numbers: dict[str, list[int]] = {}
        for key, number in self.ran:
            numbers.setdefault(key, []).append(number)
        assert not [key for key, of_key in numbers.items() if of_key != sorted(of_key)]
        starts = [key for key, _ in self.ran]
        waited = starts.index("new") - arrived
        assert waited <= MOST_WAITED, f"a new key waited for {waited} starts"
        [(key, most)] = Counter(starts[before : before + KEYS]).most_common(1)
        assert most <= 2, f"{key} ran {most} times in one turn of all keys"


@pytest.mark.parametrize(
    ("kind", "server", "prefix"),
    [
        ("backlog", "", "k"),
        ("backlog", "", "t/k"),
        pytest.param("channel", "kafka", "k", marks=NIGHTLY("the matrix")),
        pytest.param("backlog", "cassandra", "k", marks=NIGHTLY("the matrix")),
    ],
)
async def test_a_new_owner_keeps_the_order_of_keys_and_their_turns(
    sqlite_url: str, request: pytest.FixtureRequest, kind: str, server: str, prefix: str
) -> None:
    """`prefix`: whether the keys are tenants, or keys of one tenant."""
    place = request.getfixturevalue(f"{server}_url") if server else "database"
    await Queue(sqlite_url, **{kind: place}).change_owner([f"{prefix}{n}" for n in range(KEYS)])
