"""Many tasks in ERROR on Redis alone: all of them are found, retried, ended and reported, and no
command reads more than a page of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("redis", reason="needs the extra redis")
from fairlead import App, errors  # noqa: E402
from fairlead.backends.redis.sharded.endpoint import GROUP  # noqa: E402
from fairlead.backends.redis.sharded.message import ClaimEnd  # noqa: E402
from fairlead.backends.redis.task_messages import reasons  # noqa: E402
from fairlead.model import IncidentKind, State  # noqa: E402
from fairlead.operate.changes import Fail, Retry  # noqa: E402
from fairlead.operate.summary import summary  # noqa: E402
from fairlead.operate.tenants import tenants  # noqa: E402
from fairlead.ports.task_records import TaskFilter  # noqa: E402
from fairlead.sharded import SyncShardedQueue  # noqa: E402
from tests import tiers  # noqa: E402

MANY = 10_300
NOW = 2_000_000_000_000_000  # microseconds since the epoch


class Failing:
    """An application whose tasks are all in ERROR, as a worker leaves them."""

    def __init__(self, url: str) -> None:
        self.app = App(url)

        @self.app.task
        async def fail(n: int, body: str = "") -> None: ...

        self.task = fail
        self._redis = SyncShardedQueue(self.app.store.endpoint.server.url, "unused")  # type: ignore[attr-defined]

    def fail(self, *rows: dict[str, Any], text: str = "no", **options: Any) -> list[str]:
        """Submit tasks and move them to ERROR; return their ids."""
        handles = self.task.options(**options).submit_many(rows)
        store: Any = self.app.store
        lane = store.endpoint.lanes("default", 5).at(options.get("priority", 5))
        left = len(rows)
        while left:
            found = self._redis._do(lane.read_many(GROUP, "c", min(left, 500), 0.0))
            ends = [ClaimEnd(each.id, "dead", reasons("ValueError", text)) for each in found]
            assert all(self._redis._do(lane.finish(GROUP, "c", ends)))
            left -= len(found)
        return [handle.id for handle in handles]

    def close(self) -> None:
        self._redis.close()
        self.app.close()


@pytest.fixture
def failing(redis_url: str) -> Iterator[Failing]:
    made = Failing(redis_url)
    yield made
    made.close()


async def test_letters_behind_ten_thousand_others_are_found_retried_failed_and_reported(
    failing: Failing,
) -> None:
    management, incidents = failing.app.management, failing.app.store.incidents
    failing.fail(*({"n": n} for n in range(MANY)))
    last, other = failing.fail({"n": MANY}, {"n": MANY + 1}, fairness_key="acme")
    assert {task.id for task in management.find(fairness_key="acme", state=State.ERROR)} == {
        last,
        other,
    }
    assert len(management.find(state=State.ERROR, limit=MANY * 2)) == MANY + 2
    assert management.payload(last) == b'{"n":%d}' % MANY
    await incidents.sweep(0, NOW, 1000)
    assert await incidents.counts() == {("error", "default", "fail"): MANY + 2}
    management.retry(last)
    management.fail(other)
    for task_id in (last, other):
        with pytest.raises(errors.NotSupported):
            management.show(task_id)
    assert management.queues()[0].error == MANY
    swept = calls = 0
    while calls == 0 or swept:
        swept = await incidents.sweep(swept, NOW, 1000)
        calls += 1
    assert calls == MANY // 1000 + 1
    assert await incidents.counts() == {("error", "default", "fail"): MANY}


async def test_no_look_at_the_letters_reads_their_payloads(failing: Failing, client: Any) -> None:
    failing.fail(*({"n": n, "body": "x" * 20_000} for n in range(500)))
    management, incidents = failing.app.management, failing.app.store.incidents
    before = client.info("stats")["total_net_output_bytes"]
    await incidents.sweep(0, NOW, 1000)
    assert len(await incidents.claim(NOW, NOW + 1, 1000)) == 500
    (found,) = management.find(state=State.ERROR, limit=1)
    management.retry(found.id)
    read = client.info("stats")["total_net_output_bytes"] - before
    assert read < 3_000_000, "ten million bytes of payloads stay in Redis"
    assert management.queues()[0].submitted == 1


async def test_each_letter_becomes_one_incident_and_a_second_error_another(
    failing: Failing,
) -> None:
    incidents = failing.app.store.incidents
    ids = failing.fail(*({"n": n} for n in range(3)))
    for _ in range(3):
        await incidents.sweep(0, NOW, 10)
    seen = Counter(each.subject for each in await incidents.claim(NOW, NOW + 1, 10))
    assert seen == Counter(ids)
    await incidents.delivered(
        [each.id for each in await incidents.claim(NOW + 1, NOW + 2, 10)], NOW
    )
    failing.app.management.retry(ids[1])
    lane = failing.app.store.endpoint.lanes("default", 5).at(5)  # type: ignore[attr-defined]
    (again,) = failing._redis._do(lane.read_many(GROUP, "c", 1, 0.0))
    failing._redis._do(lane.finish(GROUP, "c", [ClaimEnd(again.id, "dead", reasons("E", "again"))]))
    await incidents.sweep(0, NOW, 10)
    (incident,) = await incidents.claim(NOW + 3, NOW + 4, 10)
    assert (incident.subject, incident.details) == (ids[1], "E: again")
    assert await incidents.counts() == {("error", "default", "fail"): 3}


def test_a_task_in_error_has_its_context_and_the_whole_text_of_its_error(failing: Failing) -> None:
    context = {"trace": "x" * 3000}
    (large,) = failing.fail({"n": 1}, text="é" * 4000, context=context)
    (small,) = failing.fail({"n": 2}, context={"trace": "y"})
    management = failing.app.management
    shown = management.show(large)
    assert (shown.error_type, shown.error_text) == ("ValueError", "é" * 4000)
    assert shown.context is not None and "x" * 3000 in shown.context
    listed = {task.id: task for task in management.find(state=State.ERROR)}
    assert listed.keys() == {large, small}
    assert listed[large].error_text.startswith("é" * 400)
    assert [management.payload(task_id) for task_id in (large, small)] == [b'{"n":1}', b'{"n":2}']


def test_tasks_in_error_are_listed_by_id_over_all_priorities_and_after_an_id(
    failing: Failing,
) -> None:
    ids = [failing.fail({"n": n}, priority=n % 3)[0] for n in range(9)]
    management = failing.app.management
    assert [task.id for task in management.find(state=State.ERROR)] == ids
    assert [task.id for task in management.find(state=State.ERROR, limit=4)] == ids[:4]
    store: Any = failing.app.store
    where = TaskFilter(state=State.ERROR, after=ids[3])
    found = store.database.read_now(store.tasks(where, 3))
    assert [task.id for task in found] == ids[4:7]
    result = management.bulk(Retry(), state=State.ERROR, limit=4)
    assert (result.changed, result.refused) == (4, 0)
    assert [task.id for task in management.find(state=State.ERROR)] == ids[4:]
    assert management.bulk(Fail(), state=State.ERROR).changed == 5
    assert management.find(state=State.ERROR) == []
    assert management.queues()[0].submitted == 4
    (ids[0],) = failing.fail({"n": 1}, priority=9)
    assert management.find(state=State.ERROR, older_than=timedelta(hours=1)) == []
    assert management.find(state=State.ERROR, queue="other") == []


@pytest.mark.parametrize("many", [30, pytest.param(3000, marks=tiers.FULL("a long run"))])
def test_rare_letters_are_found_by_key_name_and_error_over_all_priorities(
    failing: Failing, many: int
) -> None:
    @failing.app.task(name="pay")
    async def pay(n: int) -> None: ...

    keys = ["a", "a:", "1:a", "é b/c", ""]
    found: dict[str, list[str]] = {key: [] for key in keys}
    named = []
    for n in range(9):
        failing.fail(*({"n": n} for n in range(many)), priority=n % 3)
        key = keys[n % len(keys)]
        found[key] += failing.fail({"n": n}, text="No: Ünder", fairness_key=key, priority=n % 4)
        failing.task, others = pay, failing.task
        named += failing.fail({"n": n}, priority=n % 2, fairness_key="x")
        failing.task = others
    find = failing.app.management.find
    for key in keys[:-1]:
        assert [task.id for task in find(state=State.ERROR, fairness_key=key)] == found[key]
        first = find(state=State.ERROR, fairness_key=key, limit=1)
        assert [task.id for task in first] == found[key][:1]
    assert [task.id for task in find(state=State.ERROR, name="pay")] == named
    rare = sorted(task_id for ids in found.values() for task_id in ids)
    assert [task.id for task in find(state=State.ERROR, error="no: Ünd")] == rare
    assert find(state=State.ERROR, error="no: ünd") == [], "the case of ASCII letters only"
    both = find(state=State.ERROR, error="VALUEERROR\nNO: Ü", fairness_key="a")
    assert [task.id for task in both] == found["a"]
    assert find(state=State.ERROR, name="pay", fairness_key="a") == []
    result = failing.app.management.bulk(Retry(), state=State.ERROR, fairness_key="a")
    assert result.changed == len(found["a"])
    assert find(state=State.ERROR, fairness_key="a") == []


def test_a_page_looks_at_a_bounded_number_of_letters_and_says_where_it_goes_on(
    failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    management, reads = failing.app.management, failing.app.store.records.reads
    old = failing.fail(*({"n": n} for n in range(1000)))
    rare = failing.fail({"n": 1}, text="a rare text")
    new = failing.fail(*({"n": n} for n in range(500)))
    last = failing.fail({"n": 2}, text="another rare text")
    database, page = failing.app.store.database, reads.page
    looks = []

    def page_of_400(where: TaskFilter, limit: int, newest_first: bool) -> Any:
        return (yield from page(where, limit, newest_first, 400))

    monkeypatch.setattr(reads, "page", page_of_400)
    read_now = database.read_now

    def counted(steps: Any) -> Any:
        looks.append(steps)
        return read_now(steps)

    monkeypatch.setattr(database, "read_now", counted)
    found, after, cuts = list[str](), None, list[bool]()
    while not cuts or after is not None:
        step = management.page(state=State.ERROR, error="RARE", newest_first=False, after=after)
        assert after is None or step.after is None or step.after > after
        found, after = found + [task.id for task in step.tasks], step.after
        cuts.append(step.is_cut)
    assert (found, cuts) == ([*rare, *last], [True, True, True, False])
    assert len(looks) == 4
    assert [t.id for t in management.find(state=State.ERROR, error="rare")] == [*rare, *last]
    step = management.page(state=State.ERROR, limit=3, newest_first=False, after=old[-1])
    assert [task.id for task in step.tasks] == [*rare, *new[:2]]
    assert (step.after, step.is_cut) == (new[1], False)


def test_an_error_of_a_lost_worker_is_found_by_its_text(failing: Failing) -> None:
    lane = failing.app.store.endpoint.lanes("default", 1).at(5)  # type: ignore[attr-defined]
    (lost,) = failing.task.submit_many([{"n": 1}])
    failing.fail({"n": 2})
    failing._redis._do(lane.read_many(GROUP, "dead", 1, 0.0))
    other = failing.fail({"n": 3})
    assert failing._redis._do(lane.reclaim(GROUP, "c", 0.0, 10)) == []
    find = failing.app.management.find
    wanted = [task.id for task in find(state=State.ERROR, error="lost with its worker")]
    assert len(wanted) == 1 and wanted[0] not in other
    assert lost.id in {task.id for task in find(state=State.ERROR)}


def test_a_retry_of_all_that_is_interrupted_goes_on_and_leaves_tasks_submitted_meanwhile(
    failing: Failing,
) -> None:
    failing.fail(*({"n": n} for n in range(1700)))
    management = failing.app.management
    sums: list[int] = []

    def on_batch(result: Any) -> None:
        sums.append(result.changed)
        failing.task.submit(n=0)
        if len(sums) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        management.bulk(Retry(), state=State.ERROR, on_batch=on_batch)
    assert sums == [500, 1000]
    assert management.queues()[0].error == 700
    result = management.bulk(Retry(), state=State.ERROR, on_batch=on_batch)
    assert (result.changed, sums[2:]) == (700, [500, 700])
    (status,) = management.queues()
    assert (status.error, status.submitted) == (0, 1700 + 4)


def test_a_console_pages_through_tasks_in_error_and_is_refused_what_redis_does_not_record(
    failing: Failing,
) -> None:
    ids = [failing.fail({"n": n}, fairness_key=f"t{n % 2}/x")[0] for n in range(7)]
    management, context = failing.app.management, failing.app.operate_context
    first = management.page(state="ERROR", limit=4, newest_first=False)
    rest = management.page(state="ERROR", limit=4, newest_first=False, after=first.after)
    assert [task.id for task in first.tasks + rest.tasks] == ids
    assert rest.after is None
    assert [task.id for task in management.find(state="ERROR", tenant="t1")] == ids[1::2]
    assert [task.id for task in management.find(state="ERROR", tenants={"t0"})] == ids[::2]
    assert [task.id for task in management.find(state="ERROR", id=ids[3])] == [ids[3]]
    for refused in (
        lambda: management.page(state="ERROR"),
        lambda: management.find(state="ERROR", argument="n=1"),
        lambda: management.page(newest_first=False),
        lambda: tenants(context),
        lambda: summary(context),
    ):
        with pytest.raises(errors.NotSupported):
            refused()


async def test_open_incidents_on_redis_are_listed_the_latest_first(failing: Failing) -> None:
    failing.fail(*({"n": n} for n in range(5)))
    store = failing.app.store
    await store.incidents.sweep(0, NOW, 100)
    found = store.database.read_now(store.incidents.open([IncidentKind.ERROR], 3))
    assert len(found) == 3
    assert [each.id for each in found] == sorted((each.id for each in found), reverse=True)
    assert store.database.read_now(store.incidents.open([IncidentKind.STUCK], 3)) == []
