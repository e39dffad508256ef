"""Chains, groups, chords and callbacks of Celery on Fairlead."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from fairlead.contrib.celery import (
    Celery,
    chain,
    chord,
    group,
    waiting,
)
from fairlead.contrib.celery.exceptions import ChordError
from fairlead.errors import InvalidTask
from tests.integration.celery_kit import run


@pytest.fixture
def add(celery: Celery) -> Any:
    """Return a task that adds two numbers."""

    @celery.task
    def add(x: int, y: int) -> int:
        return x + y

    return add


async def test_a_chain_passes_each_result_on_and_its_results_know_their_parents(
    celery: Celery,
    add: Any,
) -> None:
    result = chain(add.s(1, 2), add.s(10), add.si(5, 5), add.s(100))()
    assert result.parent.parent.parent.parent is None
    await run(celery)
    assert result.get() == 110
    assert result.parent.parent.get() == 13
    piped = add.s(1, 1) | add.s(1) | add.s(1)
    result = piped.apply_async()
    await run(celery)
    assert result.get() == 4


async def test_a_failed_task_in_a_chain_fails_those_after_it_with_the_reason(
    celery: Celery,
) -> None:
    @celery.task
    def fail() -> None:
        raise ValueError("no stock")

    @celery.task
    def work(value: Any) -> None:
        raise AssertionError

    result = (fail.s() | work.s() | work.s())()
    await run(celery)
    assert (result.state, result.parent.state) == ("FAILURE", "FAILURE")
    for each in (result, result.parent):
        with pytest.raises(ValueError, match="no stock"):
            each.get()
    with pytest.raises(ChordError, match="ended as ERROR: .*ChordError"):
        celery.AsyncResult(result.id).get()
    with pytest.raises(ChordError, match="ended as ERROR: ValueError no stock"):
        celery.AsyncResult(result.parent.id).get()
    with pytest.raises(ValueError, match="no stock"):
        result.parent.parent.get()


@pytest.mark.parametrize("size", [0, 1, 3, 20])
async def test_the_body_of_a_chord_gets_all_results(celery: Celery, size: int) -> None:
    @celery.task
    def square(x: int) -> int:
        return x * x

    @celery.task
    def total(numbers: list[int], more: int = 0) -> int:
        return sum(numbers) + more

    result = chord([square.s(n) for n in range(size)])(total.s(more=1))
    await run(celery)
    assert result.get() == sum(n * n for n in range(size)) + 1


async def test_a_chord_whose_header_fails_never_runs_its_body(celery: Celery) -> None:
    @celery.task
    def work(x: int) -> int:
        if x == 2:
            raise ValueError("two")
        return x

    @celery.task
    def total(numbers: list[int]) -> None:
        raise AssertionError

    result = chord([work.s(n) for n in range(4)])(total.s())
    await run(celery)
    assert result.state == "FAILURE"
    with pytest.raises(ChordError, match="ended as ERROR: ValueError two"):
        result.get()


async def test_a_chain_goes_on_once_its_failed_tasks_are_retried(celery: Celery) -> None:
    is_broken = [True]

    @celery.task
    def work() -> int:
        if is_broken:
            raise ValueError("no stock")
        return 1

    @celery.task
    def after(x: int) -> int:
        return x + 1

    result = (work.s() | after.s())()
    await run(celery)
    is_broken.clear()
    for each in (result.parent, result):
        celery.fairlead.management.retry(each.id)
        await run(celery)
    assert result.get() == 2


async def test_groups_in_groups_are_one_group_and_know_the_task_before(
    celery: Celery, add: Any
) -> None:
    @celery.task
    def total(numbers: list[int]) -> list[int]:
        return numbers

    inner = group(add.s(1), add.s(2))
    nested, after = group(group(inner), add.s(3)).delay(1), (add.s(1, 1) | inner).delay()
    body = chord(group(inner, add.s(3)).clone((5,)), total.s()).delay()
    await run(celery)
    assert (len(nested), nested.get(), body.get()) == (3, [2, 3, 4], [6, 7, 8])
    assert after.parent is not None and (after.parent.get(), after.get()) == (2, [3, 4])


async def test_options_of_a_chain_are_those_of_its_tasks_unless_they_have_their_own(
    celery: Celery,
    add: Any,
) -> None:
    flow = add.s(1, 1) | add.s(1).set(fairness_key="own")
    result = flow.apply_async(fairness_key="acme", queue="mail", countdown=3600)
    records = [each.handle.record() for each in (result.parent, result)]
    assert [(each.fairness_key, each.queue) for each in records] == [
        ("acme", "mail"),
        ("own", "mail"),
    ]
    assert records[0].run_at > records[1].run_at, "only the first task waits for a time"
    for option in ({"link": add.s(1)}, {"task_id": result.id}):
        with pytest.raises(TypeError, match="a group takes no"):
            group(add.s(1, 1)).apply_async(**option)


async def test_callbacks_run_after_their_task_with_its_result(celery: Celery) -> None:
    seen: list[Any] = []

    @celery.task
    def work(x: int) -> int:
        return x

    @celery.task
    def after(value: Any, name: str = "") -> None:
        seen.append((value, name))

    work.apply_async((1,), link=[after.s(name="a"), after.si("b")])
    await run(celery)
    assert sorted(map(str, seen)) == ["('b', '')", "(1, 'a')"]


async def test_a_waiting_task_looks_by_itself_if_nothing_wakes_it(
    celery: Celery, add: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting.Waker, "ended", lambda *given: None)
    monkeypatch.setattr(waiting, "FIRST_CHECK", timedelta(milliseconds=50))

    result = (add.s(1, 2) | add.s(3))()
    await run(celery)
    assert result.get() == 6


async def test_a_chain_is_written_in_one_transaction(celery: Celery, add: Any) -> None:
    add.s(1, 1).delay()  # make the tables known
    before = celery.fairlead.management.count().number
    with pytest.raises(InvalidTask):
        (add.s(1, 1) | add.s(object())).delay()
    assert celery.fairlead.management.count().number == before
