"""Bulk actions on the console: who may go on with one, who performs it, and the list that a viewer
comes back to."""

from __future__ import annotations

from collections.abc import Collection

from fairlead import App
from fairlead.operate.changes import Cancel, NewValues
from fairlead.operate.store.actions import ActionState
from fairlead.web import Access
from tests.web.browsing import Browser, with_access


def interrupted(app: App) -> int:
    """Return the id of an interrupted action that cancels tasks."""
    actions = app.management.actions
    asked = actions.ask(Cancel(), app.management.where())
    actions.interrupt(asked.id)
    return asked.id


def may(app: App, actions: Collection[str]) -> Browser:
    return Browser(with_access(app, Access(actions=frozenset(actions), name="ada")))


async def test_a_worker_goes_on_with_an_action_and_the_console_does_not_claim_it(app: App) -> None:
    number, browser = interrupted(app), may(app, {"retry", "cancel"})
    assert "Go on" in (await browser.get(f"/actions/action?id={number}")).text
    assert (await browser.post("/do/resume_action", id=number)).status_code == 303
    found = app.management.actions.show(number)
    assert (found.state, found.performer) == (ActionState.WAITING, None)


async def test_a_viewer_comes_back_to_the_filtered_list_after_a_change_of_selected_tasks(
    app: App,
) -> None:
    browser = may(app, {"cancel"})
    await browser.get("/tasks?queue=mail&tenant=acme")
    task = app.management.page(limit=1).tasks[0].id
    chosen = {"ids": task}
    confirmation = (await browser.post("/confirm/cancel_matching", **chosen)).text
    assert "End the named tasks as CANCELLED" in confirmation
    assert 'href="/tasks?queue=mail&amp;tenant=acme">Back' in confirmation
    response = await browser.post("/do/cancel_matching", **chosen)
    assert response.headers["location"] == "/tasks?queue=mail&tenant=acme"


async def test_the_log_shows_the_values_of_a_change_in_words(app: App) -> None:
    app.management.actions.ask(NewValues(priority=3, actor="ada"), app.management.where())
    log = (await may(app, ()).get("/audit")).text
    assert "priority 3" in log and "{" not in log.split("<main", 1)[1]


async def test_a_selected_task_that_is_gone_is_left_out_of_the_confirmation(app: App) -> None:
    browser = may(app, {"cancel"})
    await browser.get("/tasks")
    task = app.management.page(limit=1).tasks[0].id
    chosen = {"ids": ["01938d2c-0000-7000-8000-000000000000", task]}
    assert "Cancel 1 task" in (await browser.post("/confirm/cancel_matching", **chosen)).text


async def test_all_that_match_are_the_tasks_of_the_list(app: App) -> None:
    page = (await may(app, {"cancel"}).get("/tasks?no_key=off")).text
    assert 'value="matching"' in page and 'name="filter.fairness_key"' not in page
    assert 'name="no_key" value="on">' in page


async def test_a_misspelt_filter_of_a_form_is_refused_and_does_not_select_all(app: App) -> None:
    browser = may(app, {"cancel"})
    await browser.get("/tasks")
    chosen = {"scope": "matching", "filter.colour": "mail"}
    response = await browser.post("/do/cancel_matching", **chosen)
    assert response.status_code == 400 and "filter.colour" in response.text
