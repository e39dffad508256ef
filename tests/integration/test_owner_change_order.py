"""A change of owner of a fair lane that is not read by key, with more keys than a record has: no new
task overtakes an older one of its key, a new key does not wait, and keys go on in turns."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from fairlead import App
from fairlead.backends.sql.channel import DatabaseChannel
from fairlead.testing import running

pytestmark = [pytest.mark.ordered, pytest.mark.virtual_time]

SOON = 600.0
KEYS = 1500
EACH = 6
STEPS = 100
"""Keys that get one more task after the change."""


class Queue:
    """A queue that notes the key and the number of each task that runs."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.ran: list[tuple[str, int]] = []

    def make(self) -> App:
        """Return an application of one process."""
        app = App(self.url)
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


@pytest.mark.parametrize("prefix", ["k", "t/k"])
async def test_a_new_owner_keeps_the_order_of_keys_and_their_turns(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """`prefix`: whether the keys are tenants, or keys of one tenant."""
    monkeypatch.setattr(DatabaseChannel, "reads_by_key", False)
    queue = Queue(sqlite_url)
    keys = [f"{prefix}{n}" for n in range(KEYS)]
    app = queue.make()
    app.migrate()
    queue.submit(app, [(key, n) for n in range(EACH) for key in keys])
    async with running(app, concurrency=10, look_ahead=500):
        await queue.started(KEYS)
    app.close()
    before = len(queue.ran)
    app = queue.make()
    async with running(app, concurrency=10, look_ahead=500):
        await queue.started(before + 200)
        later = keys[:: KEYS // STEPS]
        new = [("new", 0), ("new", 1)]
        await asyncio.to_thread(queue.submit, app, [*new, *((key, EACH) for key in later)])
        arrived = len(queue.ran)
        await queue.started(KEYS * EACH + len(later) + 2)
    app.close()
    numbers: dict[str, list[int]] = {}
    for key, number in queue.ran:
        numbers.setdefault(key, []).append(number)
    overtaken = [key for key, of_key in numbers.items() if of_key != sorted(of_key)]
    starts = [key for key, _ in queue.ran]
    waited = starts.index("new") - arrived
    ahead = Counter(starts[before : before + KEYS]).most_common(1)[0][1]
    assert not overtaken
    assert waited <= 60
    assert ahead <= 2
