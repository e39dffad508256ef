"""The screens of sharded queues, on a real Redis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from fairlead import App
from fairlead.errors import ConfigurationError
from fairlead.web import Access, console
from tests.web.api_kit import serving
from tests.web.browsing import Browser, with_access

if TYPE_CHECKING:
    from fairlead.sharded import SyncShardedQueue

pytest.importorskip("redis", reason="needs the extra redis")


@pytest.fixture
def queues(redis_url: str) -> Iterator[list[SyncShardedQueue]]:
    """Yield a queue read by tenants, with claims and three dead letters, and an unused one."""
    from fairlead.sharded import SyncShardedQueue

    with ExitStack() as stack:
        images = stack.enter_context(
            SyncShardedQueue(redis_url, "images", reads="tenants", max_deliveries=1)
        )
        unused = stack.enter_context(SyncShardedQueue(redis_url, "unused"))
        for number in range(3):
            images.write({"n": number, "html": "<b>"}, shard_key="bad")
        images.read_many("resizers", "gone", count=3)
        assert images.reclaim("resizers", "ann", min_idle=0) == []  # all three are dead letters
        for _ in range(5):
            images.write({"n": 1}, shard_key="acme")
        images.write({"n": 1}, shard_key="bo")
        images.read("resizers", "ann")
        yield [images, unused]


async def test_the_screen_shows_lengths_claims_consumers_and_the_heaviest_keys(
    app: App, queues: list[SyncShardedQueue]
) -> None:
    browser = Browser(with_access(app, Access.full(name="ada"), sharded=queues))
    page = (await browser.get("/sharded")).text
    assert "images" in page and "unused" in page and "no reader yet" in page
    page = (await browser.get("/sharded/queue?name=images&group=resizers")).text
    keys = page[page.index("<h2>Shard keys") : page.index("<h2>Streams")]
    assert keys.index(">acme<") < keys.index(">bo<")
    consumers = page[page.index("<h2>Consumers") : page.index("<h2>Dead letters")]
    assert ">ann<" in consumers and 'class="num">1<' in consumers
    assert "html=&lt;b&gt;" in page and "<b>" not in page
    details = queues[0].details("resizers")
    assert [(key.shard_key, key.messages) for key in details.shard_keys][:1] == [("acme", 4)]


async def test_dead_letters_are_paged_and_requeued_or_deleted_after_a_confirmation(
    app: App, queues: list[SyncShardedQueue]
) -> None:
    images = queues[0]
    first, second, third = (letter.id for letter in images.dead_letter_heads())
    browser = Browser(with_access(app, Access.full(name="ada"), sharded=queues))
    page = await browser.get("/sharded/queue?name=images&rows=2")
    assert first in page.text and third not in page.text and "after=" in page.text
    position = images.dead_letter_heads(count=2)[-1].position
    page = await browser.get(f"/sharded/queue?name=images&rows=2&after={position}")
    assert third in page.text and first not in page.text
    page = await browser.post("/confirm/requeue_dead_letters", name="images", ids=[first, third])
    assert page.status_code == 200 and "Requeue 2 messages" in page.text
    assert images.stats("resizers").dead == 3  # nothing is done before the confirmation
    response = await browser.post("/do/requeue_dead_letters", name="images", ids=[first, third])
    assert response.status_code == 303
    assert "name images, ids 2, ids 2" in (await browser.get("/sharded/queue?name=images")).text
    assert (images.stats("resizers").dead, images.stats("resizers").messages) == (1, 8)
    response = await browser.post("/do/delete_dead_letters", name="images", ids=[second, third])
    assert "name images, ids 2, ids 1" in (await browser.get("/sharded/queue?name=images")).text
    assert images.dead_letter_heads() == []
    found = app.management.audit.list(actor="ada")
    assert [(entry.verb, entry.subject, entry.details) for entry in found] == [
        ("delete_dead_letters", "sharded queue images", f"{second} {third}"),
        ("requeue_dead_letters", "sharded queue images", f"{first} {third}"),
    ]


async def test_who_may_not_act_sees_no_boxes_and_wrong_requests_say_what_is_wrong(
    app: App, queues: list[SyncShardedQueue]
) -> None:
    reader = Browser(with_access(app, Access.read(), sharded=queues))
    page = await reader.get("/sharded/queue?name=images")
    assert "Requeue" not in page.text and 'type="checkbox"' not in page.text
    of_tenant = Browser(with_access(app, Access.read(tenants={"acme"}), sharded=queues))
    assert (await of_tenant.get("/sharded")).status_code == 403
    browser = Browser(with_access(app, Access.full(), sharded=queues))
    assert (await browser.get("/sharded/queue?name=other")).status_code == 404
    await browser.get("/sharded")
    response = await browser.post("/do/requeue_dead_letters", name="images")
    assert response.status_code == 400 and "nothing is selected" in response.text
    response = await browser.post(
        "/do/requeue_dead_letters", name="images", ids=[*map(str, range(101))]
    )
    assert response.status_code == 400


async def test_without_a_server_the_screen_says_so_for_that_queue_alone(
    app: App, queues: list[SyncShardedQueue]
) -> None:
    from fairlead.sharded import SyncShardedQueue

    with SyncShardedQueue("redis://127.0.0.1:1/0", "away") as away:
        browser = Browser(with_access(app, Access.full(), sharded=[*queues, away]))
        page = await browser.get("/sharded")
        assert page.status_code == 200 and "cannot be read" in page.text and "resizers" in page.text
        assert (await browser.get("/sharded/queue?name=away")).status_code == 503


def test_wrong_queues_are_refused(app: App, redis_url: str) -> None:
    from fairlead.sharded import SyncShardedQueue

    for wrong in ([redis_url], redis_url, 7):
        with pytest.raises(ConfigurationError, match="sharded"):
            console(app, sharded=wrong)  # type: ignore[arg-type]
    queue = SyncShardedQueue(redis_url, "images")
    with pytest.raises(ConfigurationError, match="two queues"):
        console(app, sharded=[queue, queue])
    queue.close()


def test_the_api_reads_and_acts_as_the_screens_do(app: App, queues: list[SyncShardedQueue]) -> None:
    token, images = "t" * 20, queues[0]
    first, second, third = (letter.id for letter in images.dead_letter_heads())
    with (
        serving(console(app, token=token, sharded=queues)) as address,
        httpx.Client(
            base_url=f"{address}/api/v1", headers={"Authorization": f"Bearer {token}"}
        ) as client,
    ):

        def read(path: str, **query: Any) -> Any:
            return client.get(f"/sharded{path}", params=query).raise_for_status().json()

        def act(path: str, **body: Any) -> Any:
            sent = client.post(f"/sharded{path}", json={"name": "images", **body})
            return sent.raise_for_status().json()

        listed = {each["name"]: each for each in read("")}
        assert listed["images"]["group"] == "resizers" and listed["unused"]["group"] == ""
        stats = listed["images"]["stats"]
        assert (stats["dead"], stats["messages"]) == (3, 6) and stats["oldest"] is not None
        found = read("/queue", name="images", group="resizers")
        heaviest = found["details"]["shard_keys"][0]
        assert (heaviest["shard_key"], heaviest["messages"]) == ("acme", 4)
        consumer = found["details"]["consumers"][0]
        assert (consumer["name"], consumer["messages"]) == ("ann", 1)
        page = read("/dead-letters", name="images", rows=2)
        assert [letter["id"] for letter in page["rows"]] == [first, second]
        letter = page["rows"][0]
        assert letter["fields"]["html"] == "<b>" and letter["shard_key"] == "bad"
        rest = read("/dead-letters", name="images", after=page["next"])
        assert [letter["id"] for letter in rest["rows"]] == [third] and rest["next"] is None
        assert act("/requeue", ids=[first])["ids"] == [first]
        assert act("/delete", ids=[first, second])["ids"] == [second]
        for weight in (2.5, None):
            act("/weight", shard_key="acme", weight=weight)
            details = read("/queue", name="images")["details"]
            assert details["shard_keys"][0]["weight"] == weight
        assert act("/delete", ids=["not an id"])["ids"] == []
        too_many = client.post("/sharded/delete", json={"name": "images", "ids": [first] * 101})
        assert too_many.status_code == 400
    assert [letter.id for letter in images.dead_letter_heads()] == [third]
    verbs = [entry.verb for entry in app.management.audit.list()]
    changes = {"requeue_dead_letters", "delete_dead_letters", "set_weight", "clear_weight"}
    assert changes <= {*verbs}


async def test_the_api_of_sharded_queues_is_guarded_and_masked(
    app: App, queues: list[SyncShardedQueue]
) -> None:
    letter = queues[0].dead_letter_heads()[0].id
    body = {"name": "images", "ids": [letter]}
    weight = {"name": "images", "shard_key": "acme", "weight": 2.0}

    async def post(browser: Browser, path: str, given: dict[str, object]) -> int:
        await browser.get("/")
        return (await browser.send(f"/sharded/{path}", given)).status_code

    reader = Browser(with_access(app, Access.read(), sharded=queues))
    assert (await reader.get("/api/v1/sharded")).status_code == 200
    for action, path, given in (
        ("retry", "requeue", body),
        ("cancel", "delete", body),
        ("weight", "weight", weight),
    ):
        assert await post(reader, path, given) == 403
        others = frozenset({"retry", "cancel", "weight"} - {action})
        without = Access(actions=others, name="ada")
        assert await post(Browser(with_access(app, without, sharded=queues)), path, given) == 403
    of_tenant = Browser(with_access(app, Access.full(tenants={"acme"}), sharded=queues))
    for path in ("", "/queue?name=images", "/dead-letters?name=images"):
        assert (await of_tenant.get(f"/api/v1/sharded{path}")).status_code == 403

    def mask(name: str, fields: dict[str, str]) -> dict[str, str]:
        return dict.fromkeys(fields, f"{name} ***")

    masked = Browser(with_access(app, Access.read(), sharded=queues, mask=mask))
    page = (await masked.get("/sharded/queue?name=images")).text
    assert "html=images ***" in page and "&lt;b&gt;" not in page
    text = (await masked.get("/api/v1/sharded/dead-letters?name=images")).text
    assert '"html":"images ***"' in text and "<b>" not in text
    assert len(queues[0].dead_letter_heads()) == 3
