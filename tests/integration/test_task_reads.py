"""Bounded reads for consoles: pages of tasks, counts, tenants, the summary of all queues."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from fairlead import App, NoRetry
from fairlead.errors import InvalidTask
from fairlead.model import tenant_of
from fairlead.model.task_facts import TaskPage
from fairlead.operate.doctor import explanation
from fairlead.operate.filters import Counted
from fairlead.operate.nodes import nodes
from fairlead.operate.overview import queue_view
from fairlead.operate.summary import summary
from fairlead.operate.tenants import tenant, tenants
from fairlead.ports.task_records import TaskFilter
from fairlead.testing import drain

pytestmark = [pytest.mark.stores, pytest.mark.smoke]

KEYS = ("acme/a", "acme/b", "acme", "acm", "acme2", "beta/x", "", "/odd", "/odd/y", "é/ü", "acme%")


@pytest.fixture
async def shop(app: App):
    @app.task(name="pay", retry=NoRetry())
    async def pay(n: int, customer: dict[str, Any] | None = None, text: str = "") -> None:
        if n % 7 == 0:
            raise ValueError(f"no {n}")

    return app, pay


def _ids(page: TaskPage) -> list[str]:
    return [task.id for task in page.tasks]


async def test_pages_go_both_ways_through_all_tasks_without_a_gap(shop) -> None:
    app, pay = shop
    ids = [handle.id for handle in app.submit_many([pay.draft(n=i) for i in range(25)])]
    for newest_first in (True, False):
        found: list[str] = []
        after = None
        while True:
            page = app.management.page(limit=10, after=after, newest_first=newest_first)
            found += _ids(page)
            after = page.next
            if after is None:
                break
        assert found == sorted(ids, reverse=newest_first)


async def test_every_filter_selects_what_it_says(shop) -> None:
    app, pay = shop
    now = datetime.now(UTC)
    long = "x" * 5000  # stored compressed
    drafts = [
        pay.options(
            fairness_key=KEYS[i % len(KEYS)],
            ordering_key=f"o{i % 3}" if i % 7 else None,  # a task in ERROR would hold its key
            unique_key=f"u{i}",
            tags="even" if i % 2 == 0 else "",
        ).draft(n=i, customer={"id": i, "tags": ["a", f"t{i}"]}, text=long if i % 2 else "")
        for i in range(30)
    ]
    handles = app.submit_many(drafts)
    management = app.management

    def numbers(**filters: Any) -> list[int]:
        found = management.page(limit=1000, **filters).tasks
        assert management.count(**filters) == Counted(len(found))
        if filters.get("state") not in ("DONE", "FAILED"):
            assert {task.id for task in management.find(**filters)} == {task.id for task in found}
        at = {handle.id: i for i, handle in enumerate(handles)}
        return sorted(at[task.id] for task in found)

    every = list(range(30))
    of = {key: [i for i in every if KEYS[i % len(KEYS)] == key] for key in KEYS}
    assert numbers() == every
    assert numbers(ordering_key="o1") == [i for i in every if i % 3 == 1 and i % 7]
    assert numbers(ordering_key="o1", queue="default", fairness_key="acme") == [
        i for i in of["acme"] if i % 3 == 1 and i % 7
    ]
    assert numbers(unique_key="u7") == numbers(unique_key="u7", queue="default") == [7]
    assert numbers(unique_key="u7", queue="other") == numbers(unique_key="none") == []
    assert numbers(tags="even") == every[::2]
    assert numbers(id=handles[4].id) == numbers(id=handles[4].id.replace("-", "").upper()) == [4]
    assert numbers(id=handles[4].id[:8]) == every
    assert numbers(id="ffff") == []
    for tenant_name in {tenant_of(key) for key in KEYS}:
        wanted = sorted(i for key in KEYS if tenant_of(key) == tenant_name for i in of[key])
        assert numbers(tenant=tenant_name) == wanted
        assert numbers(tenants={tenant_name}) == wanted
        assert numbers(tenants={tenant_name}, tenant="nobody") == []
    assert numbers(tenants=()) == []
    assert numbers(argument="n=7") == numbers(argument="customer.id=7") == [7]
    assert numbers(argument="customer.tags.1=t9") == [9]
    assert numbers(argument="customer.tags.0=a", fairness_key="acme") == of["acme"]
    assert numbers(argument="customer.tags.9=a") == numbers(argument="n.x=1") == []
    assert numbers(argument="n=true") == []
    assert numbers(submitted_from=now + timedelta(hours=1)) == []
    assert numbers(submitted_from=now - timedelta(hours=1)) == every
    assert numbers(submitted_before=now - timedelta(hours=1)) == []
    assert numbers(submitted_before=now + timedelta(hours=1), older_than=timedelta()) == every
    await drain(app)
    failed = [i for i in every if i % 7 == 0]
    assert numbers(state="ERROR") == numbers(error="NO ") == failed
    assert numbers(state="ERROR", error="no 14") == numbers(state="ERROR", unique_key="u14") == [14]
    done = [i for i in every if i % 7]
    assert numbers(state="DONE") == done
    assert numbers(state="DONE", tags="even") == [i for i in done if i % 2 == 0]
    assert numbers(state="DONE", tenant="acme", ordering_key="o1") == [
        i for i in done if KEYS[i % len(KEYS)] in ("acme", "acme/a", "acme/b") and i % 3 == 1
    ]
    assert numbers(state="DONE", id=handles[5].id) == numbers(state="DONE", unique_key="u5") == [5]
    ends = []
    after = None
    while True:
        page = management.page(state="DONE", limit=4, after=after, newest_first=False)
        ends += _ids(page)
        after = page.next
        if after is None:
            break
    assert ends == _ids(management.page(state="DONE", limit=1000))[::-1]


async def test_a_page_ends_after_the_rows_that_it_may_walk_and_says_so(
    shop,
) -> None:
    app, pay = shop
    app.submit_many(
        [pay.options(fairness_key="a" if i == 3 else "b").draft(n=i) for i in range(40)]
    )
    store = app.management._store
    read = app.management._database.read_now
    where = TaskFilter(fairness_key="a")
    cursors: list[str] = []
    found = []
    while True:
        page = read(store.reads.page(where, 10, True, 10, 0))
        found += page.tasks
        if page.next is None:
            break
        assert page.is_cut
        cursors.append(page.next)
        where = msgspec.structs.replace(where, after=page.next)
    assert len(cursors) == 4
    assert len(found) == 1


async def test_wrong_filters_and_cursors_are_refused(shop) -> None:
    app, _ = shop
    management = app.management
    for wrong in (
        {"argument": "n"},
        {"argument": ".x=1"},
        {"state": "BROKEN"},
        {"argument": "n=1", "state": "DONE"},
        {"id": "xyz"},
        {"limit": 0},
        {"limit": 1001},
        {"state": "DONE", "after": "nonsense"},
        {"state": "DONE", "after": "9" * 40 + ".1"},
        {"submitted_from": datetime(2026, 1, 1)},
        {"nonsense": 1},
    ):
        with pytest.raises(InvalidTask):
            management.page(**wrong)  # type: ignore[arg-type]


async def test_tenants_show_what_each_got_and_was_due(shop) -> None:
    app, pay = shop
    app.submit_many(
        [pay.options(fairness_key=f"t{i % 3}/{i % 2}").draft(n=i + 1) for i in range(30)]
    )
    await drain(app)
    app.submit_many([pay.options(fairness_key="t1/0").draft(n=1) for _ in range(5)])
    app.submit_many([pay.options(fairness_key="t2/0").draft(n=1) for _ in range(2)])
    app.management.set_weight("default", "t1", 3.0)
    context = app.operate_context
    page = tenants(context, limit=2)
    assert [each.tenant for each in page.tenants] == ["t1", "t2"]
    assert page.next == 2
    assert page.number == Counted(3)
    first = page.tenants[0]
    assert first.backlog.number == 5
    assert first.backlog.is_exact
    assert first.runs == 10
    assert first.queues[0].weight == 3.0
    assert first.queues[0].is_weight_set
    assert first.queues[0].share_due == pytest.approx(3 / 5)
    assert first.waits.runs == 10
    assert first.waits.p50 is not None and first.waits.p99 is not None
    everyone = tenants(context, order="name").tenants
    assert [each.tenant for each in everyone] == ["t0", "t1", "t2"]
    assert sum(each.share_got or 0 for each in everyone) == pytest.approx(1)
    assert sum(each.queues[0].share_due or 0 for each in everyone) == pytest.approx(1)
    assert sum(each.errors.number for each in everyone) == 4
    assert msgspec.structs.replace(tenant(context, "t1"), why=[]) == first
    assert tenant(context, "nobody").runs == 0


async def test_the_summary_says_what_needs_a_person(shop) -> None:
    app, pay = shop
    app.submit_many([pay.draft(n=i) for i in range(15)])
    await drain(app)
    pay.submit(n=1)
    app.management.pause("default")
    found = summary(app.operate_context)
    assert [each.kind for each in found.attention] == ["errors", "paused", "unserved"]
    assert found.attention[0].number == Counted(3)
    (queue,) = found.queues
    assert (queue.backlog.number, queue.runs, queue.errors) == (1, 15, Counted(3))
    assert queue.is_paused
    assert queue.failures_per_second > 0
    view = await queue_view(app.operate_context, "default")
    assert view.numbers.backlog == queue.backlog
    assert len(view.partitions) == queue.partitions
    assert await nodes(app.operate_context) == []


async def test_an_explanation_has_the_kind_of_its_reason(shop) -> None:
    app, pay = shop
    first = pay.options(ordering_key="k").submit(n=7)
    second = pay.options(ordering_key="k").submit(n=1)
    later = pay.options(run_at=datetime.now(UTC) + timedelta(hours=1)).submit(n=1)
    context = app.operate_context
    for handle, kind in ((second, "held_by_its_key"), (later, "its_time")):
        found = await explanation(context, handle.id)
        assert found.reasons[-1].kind == kind
    assert (await explanation(context, second.id)).reasons[-1].held_by == first.id


async def test_an_explanation_counts_tasks_ahead_up_to_a_bound(shop) -> None:
    app, pay = shop
    app.submit_many([pay.options(fairness_key="a" if i % 2 else "").draft(n=1) for i in range(20)])
    app.submit_many([pay.options(priority=9).draft(n=1) for _ in range(3)])
    last = pay.options(fairness_key="z").submit(n=1)
    context = app.operate_context
    for most, ahead, is_cut in ((1000, 20, False), (15, 15, True)):
        found = await explanation(context, last.id, most_ahead=most)
        position = found.reasons[-1].position
        assert position is not None
        assert (position.ahead, position.is_cut) == (ahead, is_cut)


async def test_an_explanation_does_not_name_the_task_of_another_tenant_that_holds_the_key(
    shop,
) -> None:
    app, pay = shop
    first = pay.options(ordering_key="k", fairness_key="beta").submit(n=1)
    second = pay.options(ordering_key="k", fairness_key="acme").submit(n=1)
    found = await explanation(app.operate_context, second.id, tenants={"acme"})
    assert found.reasons[-1].kind == "held_by_its_key"
    assert found.reasons[-1].held_by is None
    assert first.id not in msgspec.json.encode(found).decode()
