"""The web console in a real browser, beside a real worker under a running workload: every screen and
every action."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import pytest

from fairlead import App
from fairlead.core.visible import visible
from fairlead.model import State, tenant_of
from fairlead.operate.policies import PolicyManagement
from fairlead.operate.store.policies import PolicyDraft
from fairlead.web import console
from tests.consoles import serving, working
from tests.end_to_end.console_app import HOSTILE
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

    from tests.browsers import Viewer

pytestmark = pytest.mark.system_time

HERE = Path(__file__).parent
MANY = 3_000
"""Tasks of a bulk action that is interrupted: more than one batch."""
HOSTILE_TEXT = visible(tenant_of(HOSTILE))
"""How every page shows HOSTILE, or the tenant that it begins with."""
NARROW, WIDE = 360, 1280
ONE_THING = {"task", "tenant", "queue", "ordered_queue", "sharded_queue", "action", "policy"}
"""Routes of screens that show one thing, which a parameter names."""
SLOW = 60_000
"""Milliseconds for what a worker does in its next round."""


@dataclass
class World:
    """An application with its worker and its console."""

    module: ModuleType
    base: str
    token: str
    browser: Browser

    @property
    def app(self) -> App:
        return self.module.app  # type: ignore[no-any-return]

    @contextmanager
    def viewer(self, **window: Any) -> Iterator[Viewer]:
        """Open a window and log in; afterwards, the browser has complained of nothing."""
        from tests.browsers import Viewer

        opened = Viewer(self.browser, self.base, **window)
        opened.visit(f"/login?token={self.token}")
        yield opened
        assert opened.complaints == []
        opened.close()

    def first(self, **filters: Any) -> str:
        """Return the id of a task that matches."""
        return str(self.app.management.page(limit=1, **filters).tasks[0].id)

    def addresses(self) -> dict[str, list[str]]:
        """Return the addresses of every screen of the console, by the name of its route."""
        management = self.app.management
        tasks = [
            self.first(state=State.ERROR),
            self.first(state=State.WAITING, tenant="acme"),
            self.first(state=State.DONE),
            self.first(name=HOSTILE, state=State.DONE),
        ]
        queries: dict[str, list[dict[str, Any]]] = {
            "tasks": [{}, {"state": "ERROR"}, {"fairness_key": HOSTILE}],
            "task": [{"id": each} for each in tasks],
            "tenant": [{"key": "acme/ann"}, {"key": HOSTILE}],
            "queue": [{"name": "mail"}, {"name": HOSTILE}],
            "ordered_queue": [{"name": "ledger"}],
            "action": [{"id": each.id} for each in management.actions.list(limit=1)],
            "policy": [
                {"version": PolicyManagement(self.app.operate_context).policies()[0].version}
            ],
            "audit": [{}, {"actor": HOSTILE}],
        }
        return {
            name: [_address(path, query) for query in queries.get(name, [{}])]
            for name, path in _screens(self.app)
            if name != "sharded_queue"  # this application has none
        }


def _screens(app: App) -> list[tuple[str, str]]:
    """Return name and path of every screen. `live` is a stream, and the API has no pages."""
    return [
        (route.name, route.path)
        for route in console(app).screens
        if route.action is None and route.name != "live" and not route.path.startswith("/api/")
    ]


def _address(path: str, query: dict[str, Any]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _module(url: str) -> tuple[ModuleType, dict[str, str]]:
    """Return console_app for a store, and the environment of processes that import it."""
    os.environ["CONSOLE_URL"] = url
    spec = importlib.util.spec_from_file_location("console_app", HERE / "console_app.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    del os.environ["CONSOLE_URL"]
    path = os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE)])
    return module, {"CONSOLE_URL": url, "PYTHONPATH": path}


@contextmanager
def _world(url: str, folder: Path, browser: Browser) -> Iterator[World]:
    """Start the worker, the console and the workload."""
    module, environment = _module(url)
    app: App = module.app
    app.migrate()
    stop = threading.Event()
    workload = threading.Thread(target=_submit_until, args=(module, stop))
    with ExitStack() as stack:
        stack.callback(app.close)
        stack.enter_context(working(folder, "console_app:app", environment=environment))
        wait_until(lambda: app.management.periodic.list() and len(app.management.queues()) >= 4)
        module.fill()
        _publish_policies(app)
        waiting = app.management.page(state=State.WAITING, name="send_mail", limit=1).tasks[0]
        app.management.change(waiting.id, priority=6, actor=HOSTILE)
        _, base, token = stack.enter_context(
            serving(folder, "web", "console_app:app", environment=environment)
        )
        wait_until(lambda: app.management.page(state=State.DONE, name=HOSTILE, limit=1).tasks)
        wait_until(
            lambda: len(app.management.page(state=State.ERROR, name="charge_card").tasks) == 4
        )
        workload.start()
        stack.callback(workload.join)
        stack.callback(stop.set)
        yield World(module, base, token, browser)


def _submit_until(module: ModuleType, stop: threading.Event) -> None:
    """Submit a few tasks again and again."""
    while not stop.wait(0.1):
        for tenant in ("acme", "umbrella"):
            module.send_mail.options(fairness_key=tenant).submit(to="a@example.com")


def _publish_policies(app: App) -> None:
    """Publish two versions; the second is a canary."""
    policies, version = PolicyManagement(app.operate_context), None
    for weight in (2.0, 0.5):
        draft = PolicyDraft(
            queue="mail",
            author=HOSTILE,
            why=HOSTILE,
            computed_at=app.clock.now(),
            guarded={"acme": weight, HOSTILE: weight},
            reasons={HOSTILE: HOSTILE},
            is_canary=True,
        )
        version = policies.publish(draft, version)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[World]:
    """The application on SQLite."""
    folder = tmp_path_factory.mktemp("console")
    with _world(f"sqlite:///{folder}/tasks.db", folder, browser) as world:
        yield world


def _confirm(where: Locator | Page, label: str, **fields: str) -> None:
    """Open the confirmation of an action, fill in its fields, and do the action."""
    where.locator("summary", has_text=label).first.click()
    box = where.locator("details.confirm[open] form")
    for name, value in fields.items():
        field = box.locator(f"[name={name}]")
        if field.evaluate("element => element.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    box.locator("button").click()


def _check_notice(page: Page, text: str) -> None:
    """Wait for the notice of an action."""
    from playwright.sync_api import expect

    expect(page.get_by_role("status")).to_contain_text(text)


def test_each_action_on_one_task_is_done(world: World) -> None:
    later = {"state": State.WAITING, "name": "send_mail"}
    management = world.app.management
    with world.viewer() as viewer:
        for tenant, label, verb, state in (
            ("acme", "Retry", "retry", None),
            ("umbrella", "Fail", "fail", State.FAILED),
            ("globex", "Cancel", "cancel", State.CANCELLED),
        ):
            task = world.first(state=State.ERROR, name="charge_card", tenant=tenant)
            page = viewer.visit(f"/tasks/task?id={task}")
            if verb == "retry":
                page.get_by_role("button", name=label).click()
            else:
                _confirm(page, label)
            _check_notice(page, f"Done: {verb} task")
            assert state is None or management.show(task).state == state
        task = world.first(tenant="umbrella", **later)
        page = viewer.visit(f"/tasks/task?id={task}")
        _confirm(page, "Reschedule", run_at="2099-01-31T09:00")
        _check_notice(page, "Done: reschedule task")
        _confirm(page, "Change", priority="2", new_fairness_key="umbrella/eve")
        _check_notice(page, "Done: change task")
        changed = management.show(task)
        assert (changed.priority, changed.fairness_key) == (2, "umbrella/eve")
        assert changed.run_at == int(datetime(2099, 1, 31, 9, tzinfo=UTC).timestamp()) * 1_000_000
        page.get_by_role("button", name="Run now").click()
        _check_notice(page, "Done: resume task")
        wait_until(lambda: management.show(task).state == State.DONE)


def test_selected_tasks_are_changed_after_a_confirmation(world: World) -> None:
    tenant = f"chosen-{world.app.clock.now()}"
    _submit_later(world, tenant, 4)
    with world.viewer() as viewer:
        page = viewer.visit(f"/tasks?tenant={tenant}")
        for box in page.locator("input[name=ids]").all()[:3]:
            box.check()
        page.get_by_role("button", name="Cancel…").click()
        assert page.locator("h1").inner_text() == "Cancel 3 tasks"
        assert page.locator("tbody tr").count() == 3
        page.get_by_role("button", name="Cancel 3").click()
        _check_notice(page, "cancel tasks: changed 3")
        assert page.locator("tbody tr").count() == 1


def _submit_later(world: World, tenant: str, number: int) -> None:
    at = datetime.now(UTC) + timedelta(days=1)
    world.module.send_mail.options(fairness_key=tenant, run_at=at).submit_many(
        [{"to": f"{n}@example.com"} for n in range(number)]
    )


def test_all_that_match_are_changed_and_the_change_can_be_interrupted(world: World) -> None:
    from playwright.sync_api import expect

    tenant = f"many-{world.app.clock.now()}"
    _submit_later(world, tenant, MANY)
    with world.viewer() as viewer:
        page = viewer.visit(f"/tasks?tenant={tenant}")
        page.get_by_label("that match").check()
        page.get_by_role("button", name="Cancel…").click()
        assert page.locator("h1").inner_text() == "Cancel 1,000+ tasks"
        assert page.locator("tbody tr").count() == 5  # the first few
        page.locator("form.card button").click()
        _check_notice(page, ": cancel")
        page.get_by_role("button", name="Interrupt").click()
        go_on = page.get_by_role("button", name="Go on")
        expect(go_on).to_be_visible(timeout=SLOW)  # seen without a reload
        go_on.click()
        expect(page.locator(".stat dd").first).to_have_text("done", timeout=SLOW)
        changed = page.locator(".stat", has_text="Changed").locator("dd")
        assert changed.first.inner_text() == f"{MANY:,}"


def _pause_exports(page: Any) -> None:
    """Pause a queue on the page of queues, and resume it."""
    row = page.locator("tbody tr", has=page.get_by_role("link", name="exports", exact=True))
    _confirm(row, "Pause")
    _check_notice(page, "pause queue (queue exports)")
    row.get_by_role("button", name="Resume").click()
    _check_notice(page, "resume queue (queue exports)")


def test_queues_weights_and_periodic_tasks_are_changed(world: World) -> None:
    from playwright.sync_api import expect

    management = world.app.management
    with world.viewer() as viewer:
        _pause_exports(viewer.visit("/queues"))
        page = viewer.visit("/tenants/tenant?key=acme")
        row = page.locator("tbody tr", has=page.get_by_role("link", name="mail", exact=True))
        _confirm(row, "Weight", weight="2.5")
        _check_notice(page, "weight 2.5")
        expect(row).to_contain_text("2.5 set")

        page = viewer.visit("/periodic")
        row = page.locator("tbody tr", has_text="clean_up")
        _confirm(row, "Run now")
        _check_notice(page, "run periodic (name clean_up")
        _confirm(row, "Pause")
        _check_notice(page, "pause periodic (name clean_up)")
        row.get_by_role("button", name="Resume").click()
        _check_notice(page, "resume periodic (name clean_up)")
    assert not management.periodic.list()[0].record.paused


def test_an_ordered_task_is_ended_for_the_next_of_its_key(world: World) -> None:
    from playwright.sync_api import expect

    key = f"a-{world.app.clock.now()}"
    at = datetime.now(UTC) + timedelta(hours=1)
    world.module.post_entry.options(ordering_key=key, run_at=at).submit(number=1)
    with world.viewer() as viewer:
        page = viewer.visit(f"/ordered/queue?name=ledger&key={key}")
        row = page.locator("tbody tr", has=page.get_by_role("link", name=key))
        expect(row).to_be_visible(timeout=SLOW)  # its owner reads the log, and the page follows
        _confirm(row, "End")
        _check_notice(page, "")
        expect(page.get_by_role("link", name=key)).to_have_count(0, timeout=SLOW)


def test_policies_are_approved_switched_and_rolled_back(world: World) -> None:
    policies = PolicyManagement(world.app.operate_context)
    newest = policies.policies("mail")[0]
    with world.viewer() as viewer:
        page = viewer.visit(f"/policies/version?version={newest.version}")
        _confirm(page, "Approve", why="as expected")
        _check_notice(page, "Done: approve policy")
        _confirm(page, "Roll back", why="too low")
        _check_notice(page, "Done: roll back policy")
        page = viewer.visit("/policies")
        _confirm(page, "Switch tuning off", mode="frozen", queue="mail", why="month end")
        _check_notice(page, "mode frozen, queue mail")
        page.get_by_role("button", name="Switch on").click()
        _check_notice(page, "switch on tuning (queue mail)")
        page = viewer.visit("/audit?rows=200")
        text = page.locator("table").inner_text()
        assert "roll back policy" in text and "switch tuning" in text
    rolled_back = policies.policies("mail")[0]
    assert rolled_back.version > newest.version and rolled_back.guarded["acme"] == 2.0


def test_every_screen_is_clean_accessible_narrow_and_shows_hostile_names(world: World) -> None:
    with world.viewer() as viewer:
        for name, addresses in world.addresses().items():
            for address in addresses:
                page = viewer.visit(address)
                assert viewer.axe() == [], address
                page.emulate_media(color_scheme="dark")
                assert address != addresses[0] or viewer.axe("color-contrast") == [], address
                page.emulate_media(color_scheme="light")
                page.set_viewport_size({"width": NARROW, "height": 640})
                assert _is_as_wide_as_the_window(page), address
                page.set_viewport_size({"width": WIDE, "height": 900})
                assert page.evaluate("document.getAnimations().length") == 0
                assert page.locator("main img, main script, main iframe").count() == 0
                if urlencode({"": HOSTILE}) in address or name in ("tenants", "queues"):
                    assert HOSTILE_TEXT in page.locator("main").inner_text(), address
                assert viewer.complaints == [], address


def _is_as_wide_as_the_window(page: Page) -> bool:
    wide: bool = page.evaluate(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
    return wide


def test_pages_follow_changes_but_not_while_paused_or_hidden(world: World) -> None:
    from playwright.sync_api import expect

    def submit(number: int) -> None:
        world.module.send_mail.options(fairness_key=f"newcomer-{number}").submit(to="a@b.example")

    hide = (
        "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange')); }"
    )
    with world.viewer() as follower, world.viewer() as other:
        address = "/tenants?search=newcomer"
        mine, theirs = follower.visit(address), other.visit(address)
        mine.evaluate("window.isTheSamePage = true")
        requests: list[object] = []

        def note(request: object) -> None:
            requests.append(request)

        submit(1)
        expect(mine.get_by_role("link", name="newcomer-1")).to_be_visible(timeout=SLOW)
        switch = mine.locator("[data-live-switch]")
        for number, stop, go_on in (
            (2, switch.click, switch.click),
            (3, lambda: mine.evaluate(hide, True), lambda: mine.evaluate(hide, False)),
        ):
            name = f"newcomer-{number}"
            stop()
            mine.on("request", note)
            submit(number)
            expect(theirs.get_by_role("link", name=name)).to_be_visible(timeout=SLOW)
            assert mine.get_by_role("link", name=name).count() == 0 and requests == []
            mine.remove_listener("request", note)
            go_on()
            expect(mine.get_by_role("link", name=name)).to_be_visible(timeout=SLOW)
        assert mine.evaluate("window.isTheSamePage")


def test_times_are_shown_in_the_zone_of_the_viewer(world: World) -> None:
    from tests.browsers import ZONE

    task = world.first(state=State.DONE, name="send_mail")
    with world.viewer() as viewer:
        page = viewer.visit(f"/tasks/task?id={task}")
        time = page.locator("dl.facts time").first
        at = datetime.fromisoformat(str(time.get_attribute("datetime"))).astimezone(ZoneInfo(ZONE))
        assert f"{at.hour % 12 or 12}:{at:%M:%S}" in time.inner_text()
        assert str(time.get_attribute("datetime")) in str(time.get_attribute("title"))


def test_a_screen_that_is_loaded_again_keeps_the_focus_in_the_same_row(world: World) -> None:
    from playwright.sync_api import expect

    def submit(key: str) -> None:
        world.module.send_mail.options(fairness_key=key).submit(to="a@b.example")

    with world.viewer() as viewer:
        page = viewer.visit("/tenants?search=focused")
        submit("focused-m")
        link = page.get_by_role("link", name="focused-m")
        expect(link).to_be_visible(timeout=SLOW)
        link.focus()
        for key in ("focused-a", "focused-z", "focused-m"):
            submit(key)
            expect(page.get_by_role("link", name=key)).to_be_visible(timeout=SLOW)
        expect(page.locator("tr", has=link)).to_contain_text("2", timeout=SLOW)
        assert page.evaluate("document.activeElement.textContent") == "focused-m"


def test_the_keyboard_reaches_and_confirms_an_action(world: World) -> None:
    with world.viewer() as viewer:
        page = viewer.visit("/queues")
        page.keyboard.press("Tab")
        skip = page.get_by_role("link", name="Skip to the content")
        box = skip.bounding_box()
        assert skip.evaluate("e => e === document.activeElement") and box and box["x"] >= 0
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        row = page.locator("tbody tr", has=page.get_by_role("link", name="exports", exact=True))
        button = row.locator("summary")
        for _ in range(40):
            page.keyboard.press("Tab")
            if button.evaluate("e => e === document.activeElement"):
                break
            focused = "getComputedStyle(document.activeElement).outlineStyle"
            assert page.evaluate(focused) != "none"
        page.keyboard.press("Enter")
        assert row.locator("details[open]").count() == 1
        page.keyboard.press("Escape")
        assert row.locator("details[open]").count() == 0
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        _check_notice(page, "pause queue (queue exports)")
        world.app.management.unpause("exports")


def test_lists_and_actions_work_without_scripts(world: World) -> None:
    _submit_later(world, "scriptless", 3)
    with world.viewer(has_scripts=False) as viewer:
        page = viewer.visit("/tasks")
        page.locator("[name=tenant]").fill("scriptless")
        page.get_by_role("button", name="Filter").click()
        assert page.locator("tbody tr").count() == 3
        page.locator("input[name=ids]").first.check()
        page.get_by_role("button", name="Run now…").click()
        page.get_by_role("button", name="Resume 1").click()
        _check_notice(page, "resume tasks: changed 1")
        _pause_exports(viewer.visit("/queues"))


def test_every_screen_of_an_empty_store_says_what_to_do(tmp_path: Path, browser: Browser) -> None:
    module, environment = _module(f"sqlite:///{tmp_path}/tasks.db")
    module.app.migrate()
    with serving(tmp_path, "web", "console_app:app", environment=environment) as (_, base, token):
        with World(module, base, token, browser).viewer() as viewer:
            for name, path in _screens(module.app):
                if name in ONE_THING:
                    continue  # there is none
                page = viewer.visit(path)
                assert page.locator(".empty").count() or name in ("doctor", "ordered"), name
                assert viewer.axe() == [], path
    module.app.close()


def test_a_sharded_queue_and_the_history_are_clean_and_dead_letters_are_requeued(
    tmp_path: Path, browser: Browser, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scripts.console_lake import make_lake
    from tests.browsers import Viewer

    environment = {
        "SHOP_URL": f"sqlite:///{tmp_path}/shop.db",
        "SHOP_LAKE": str(tmp_path / "lake"),
        "SHOP_REDIS": redis_url,
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE.parents[1])]),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    from scripts import console_shop as shop

    shop.fill_thumbnails()
    make_lake(tmp_path / "lake", datetime.now(UTC))
    with serving(tmp_path, module="scripts.console_shop", environment=environment) as (
        _,
        base,
        token,
    ):
        viewer = Viewer(browser, base, width=WIDE)
        viewer.visit(f"/login?token={token}")
        for path, text in (
            ("/sharded", "thumbnails"),
            ("/sharded/queue?name=thumbnails&group=resizers", "broken-0.tif"),
            ("/history", "flood"),
        ):
            page = viewer.visit(path)
            assert text in page.content()
            assert viewer.axe() == [], path
        page = viewer.visit("/sharded/queue?name=thumbnails&group=resizers")
        page.locator("input[name=ids]").first.check()
        page.get_by_role("button", name="Requeue…").click()
        page.get_by_role("button", name="Requeue 1").click()
        _check_notice(page, "requeue dead letters")
        assert viewer.complaints == []
        viewer.close()
    with shop.thumbnails() as queue:
        assert queue.stats("resizers").dead == 3
