"""Live updates: one look a second for all viewers, and none without viewers."""

from __future__ import annotations

import asyncio

import pytest

from fairlead import App
from fairlead.web import Access
from fairlead.web.live import Changes, LiveHub
from tests.conftest import url_of
from tests.web.browsing import Browser, with_access


def test_many_notifications_are_one_change_a_second_for_all_viewers() -> None:
    changes = Changes(look=1.0, rest=5.0)
    first = changes.refresh(0.0)
    for n in range(1000):
        changes.add()
        assert changes.refresh(n / 1001) == first
    assert [changes.refresh(at) for at in (1.0, 1.1, 1.9, 2.0, 3.0)] == [first + 1] * 5


def test_pages_are_loaded_again_once_after_a_change_and_seldom_at_rest() -> None:
    changes = Changes(look=1.0, rest=5.0, longest_rest=60.0)
    first = changes.refresh(0.0)
    changes.add()
    sent = [changes.refresh(float(at)) - first for at in range(1, 130)]
    assert [at for at in range(1, 129) if sent[at] > sent[at - 1]] == [5, 65, 125]
    assert sent[0] == 1


def test_many_viewers_beside_busy_workers_hear_less_often() -> None:
    def count(viewers: int) -> int:
        changes = Changes()
        for tenth in range(1200):
            changes.add()
            changes.refresh(tenth / 10, viewers)
        return changes.number

    assert count(1) == 120
    assert count(20) == 12
    assert count(500) == 4


@pytest.mark.system_time
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_a_submit_reaches_a_viewer_and_the_hub_stops_with_the_last(
    store: str, request: pytest.FixtureRequest
) -> None:
    app = App(url_of(store, request))
    app.migrate()
    send = app.task(queue="mail", name="send")(lambda: None)
    hub = LiveHub(app)
    hub.changes = Changes(rest=1e9, longest_rest=1e9)  # only notifications count
    stream = hub.stream()
    assert (await anext(stream)).startswith(b"retry:")
    assert hub.viewers == 1 and hub._notifier is not None

    async def submit_again_and_again() -> None:
        while True:  # a notification from before the listener is connected is lost
            await asyncio.to_thread(send.submit)
            await asyncio.sleep(0.2)

    submits = asyncio.create_task(submit_again_and_again())
    assert (await anext(stream)).startswith(b"event: changed\ndata: ")
    submits.cancel()
    await asyncio.wait([submits])
    await stream.aclose()  # type: ignore[attr-defined]
    assert hub.viewers == 0 and hub._notifier is None
    app.close()


async def test_streams_end_when_the_hub_ends(app: App) -> None:
    hub = LiveHub(app)
    stream = hub.stream()
    await anext(stream)
    hub.end()
    assert [event async for event in stream if b"changed" not in event] == []
    assert hub.viewers == 0


async def test_too_many_viewers_are_told_so(app: App) -> None:
    made = with_access(app, Access.read())
    made.parts.live.streams = 500
    response = await Browser(made).get("/live")
    assert response.status_code == 503 and "Close other pages" in response.text
