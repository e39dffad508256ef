"""Texts, values and requests from outside that no project expects."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import Client, override_settings

from fairlead import NoRetry
from fairlead.contrib.django.compat import InvalidTask, TaskResultStatus, task_finished
from fairlead.contrib.django.models import Attempt, Task
from fairlead.contrib.django.testing import drain, run_tasks
from tests.django import sample_tasks as tasks
from tests.django.test_project import act, person

pytestmark = pytest.mark.usefixtures("database")

MARKUP = "<script>alert(1)</script>\u202e&amp;\"'"


@tasks.task(retry=NoRetry())
def raise_text(text: str) -> None:
    raise ValueError(text)


@tasks.task(retry=NoRetry())
def return_value(kind: str) -> Any:
    return {
        "not a number": float("nan"),
        "surrogate": "\ud800",
        "NUL": "\0",
        "large": "x" * 3_000_000,
        "deep": _nested(5000),
    }[kind]


def _nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


@tasks.task
def accept(text: str) -> None: ...


# arguments and results ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["\0", MARKUP, "\u202e", "x" * 1_000_000], ids=["NUL", "markup", "RTL", "1 MB"]
)
def test_a_text_comes_back_as_it_was(text: str) -> None:
    result = tasks.echo.enqueue(text, **{text[:20]: text[:20]})
    assert run_tasks() == 1
    result.refresh()
    assert result.return_value == {"args": [text], "kwargs": {text[:20]: text[:20]}}
    assert tasks.echo.get_result(result.id).args == [text]


@pytest.mark.parametrize(
    "value",
    [object(), "\ud800", 2**70, float("nan"), _nested(5000), {1: 2}, {"\ud800": 1}, {(1, 2): 3}],
    ids=[
        "no JSON",
        "surrogate",
        "large number",
        "not a number",
        "deep",
        "number as name",
        "surrogate as name",
        "tuple as name",
    ],
)
def test_an_argument_that_cannot_be_stored_is_refused(value: Any) -> None:
    try:
        result = tasks.echo.enqueue(value)
    except (InvalidTask, TypeError, ValueError):
        assert not Task.objects.exists()
        with pytest.raises((InvalidTask, TypeError, ValueError)):
            tasks.echo.enqueue(named=value)
        return
    drain()
    result.refresh()
    assert result.return_value["args"] == tasks.echo.get_result(result.id).args


@pytest.mark.parametrize("option", ["fairness_key", "ordering_key", "unique_key", "queue_name"])
@pytest.mark.parametrize(
    "value", ["\0", "\ud800", "x" * 1_000_000], ids=["NUL", "surrogate", "1 MB"]
)
def test_a_key_that_cannot_be_stored_is_refused(option: str, value: str) -> None:
    backend = "fairlead.contrib.django.backend.FairleadBackend"
    with override_settings(TASKS={"default": {"BACKEND": backend, "QUEUES": []}}):
        with pytest.raises(InvalidTask):
            tasks.echo.using(**{option: value}).enqueue()
    assert not Task.objects.exists()


@pytest.mark.parametrize("kind", ["not a number", "surrogate", "large", "deep"])
def test_a_result_that_cannot_be_kept_fails_the_task_once(kind: str) -> None:
    seen: list[Any] = []

    def finished(task_result: Any, **given: Any) -> None:
        seen.append(task_result.status)

    result = return_value.enqueue(kind)
    task_finished.connect(finished)
    drain()
    assert seen == [TaskResultStatus.FAILED]
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)
    assert issubclass(result.errors[0].exception_class, Exception)


def test_arguments_do_not_count_as_a_result() -> None:
    result = accept.enqueue("x" * ((1 << 20) - 50))
    other = tasks.echo.enqueue("x" * 700_000)
    drain()
    result.refresh()
    other.refresh()
    assert result.return_value is None
    assert len(other.return_value["args"][0]) == 700_000


# the admin ----------------------------------------------------------------------------------------


def test_the_admin_shows_text_from_outside_as_text() -> None:
    failed = raise_text.using(fairness_key=MARKUP, ordering_key=MARKUP).enqueue(MARKUP)
    drain()
    client = person("ann", "view_task", "change_task", "view_attempt")
    seq = Attempt.objects.get().seq
    pages = [
        "task/", f"task/?fairness_key={MARKUP}", f"task/{failed.id}/change/", "attempt/",
        f"attempt/{seq}/change/",
    ]  # fmt: skip
    for page in pages:
        text = client.get(f"/admin/fairlead/{page}", follow=True).content.decode()
        assert "alert(1)" in text or "?" in page
        assert "<script>alert" not in text
    assert "<script>alert" not in act(client, "resume", failed.id) + act(
        client, "resume", failed.id
    )


@pytest.mark.parametrize(
    "wrong",
    ["x", "\0", "0" * 36, MARKUP, "9" * 5000],
    ids=["word", "NUL", "zeros", "markup", "long"],
)
def test_the_admin_finds_no_task_by_an_id_that_none_can_have(wrong: str) -> None:
    from urllib.parse import quote

    client = person("ann", "view_task", "change_task", "view_attempt")
    tasks.echo.enqueue()
    for kind in ("task", "attempt"):
        for path in (f"{quote(wrong)}/change/", f"?q={quote(wrong)}"):
            found = client.get(f"/admin/fairlead/{kind}/{path}", follow=True)
            assert found.status_code in (200, 404), (path, found.status_code)
    act(client, "cancel", wrong)
    assert Task.objects.count() == 1
    assert not Task.objects.filter(pk=wrong).exists()


def test_actions_are_no_get_requests() -> None:
    result = tasks.echo.enqueue()
    client = person("ann", "view_task", "change_task")
    client.get(f"/admin/fairlead/task/?action=cancel&_selected_action={result.id}")
    result.refresh()
    assert result.status == TaskResultStatus.READY
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = client.cookies
    data = {"action": "cancel", "_selected_action": [result.id]}
    assert strict.post("/admin/fairlead/task/", data).status_code == 403


def test_an_action_on_many_tasks_takes_few_transactions_and_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafts = [{"name": f"group {n}"} for n in range(300)]
    ids = [each.id for each in tasks.plain.submit_many(drafts)]
    client = person("ann", "view_task", "change_task")
    commits: list[int] = []
    commit = BaseDatabaseWrapper._commit

    def counted(wrapper: Any) -> None:
        commits.append(1)
        commit(wrapper)

    monkeypatch.setattr(BaseDatabaseWrapper, "_commit", counted)
    data = {"action": "cancel", "_selected_action": ids[:1], "select_across": "1"}
    page = client.post("/admin/fairlead/task/", data, follow=True).content.decode()
    assert "300 cancelled" in page and len(commits) < 20
    assert not Task.objects.exists()


@pytest.mark.parametrize("atomic", [False, True], ids=["plain", "with ATOMIC_REQUESTS"])
def test_a_refused_task_stops_no_other(atomic: bool) -> None:
    connection.settings_dict["ATOMIC_REQUESTS"] = atomic
    later = datetime(2100, 1, 1, tzinfo=UTC)
    waiting = [tasks.make_group.using(run_after=later).enqueue("x").id for _ in range(2)]
    due = [each.id for each in tasks.plain.submit_many([{"name": "x"}] * 38)]
    client = person("ann", "view_task", "change_task")
    data = {"action": "retry", "_selected_action": [waiting[0], *due, waiting[1]]}
    page = client.post("/admin/fairlead/task/", data, follow=True).content.decode()
    assert "2 retried" in page and "28 more were refused" in page
    assert set(Task.objects.filter(pk__in=waiting).values_list("state", flat=True)) == {"SUBMITTED"}
