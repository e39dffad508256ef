"""Progress and log lines of a task are shown by its screen and by the command line, never as markup."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from fairlead import App, Fixed, current_task
from fairlead.testing import drain
from fairlead.web import Access
from tests.end_to_end.test_command_line import fairlead_here
from tests.web.browsing import Browser, with_access

HOSTILE = "<script>alert(1)</script>\x1b[31m"


async def test_the_screen_and_the_command_show_progress_and_log_lines_as_text(
    sqlite_url: str, tmp_path: Path
) -> None:
    app = App(sqlite_url)

    @app.task(name="load", retry=Fixed(0.001, max_attempts=2), keep_log=True)
    def load() -> None:
        task = current_task()
        assert task is not None
        task.progress(5 * task.attempt, 20, HOSTILE)
        for n in range(205 if task.attempt == 2 else 1):
            logging.getLogger("shop").warning("%d %s", n, HOSTILE)
        if task.attempt == 1:
            raise ValueError("again")

    handle = load.submit()
    await drain(app)
    for access in (Access.full(), Access.full(tenants={""})):
        page = (await Browser(with_access(app, access)).get(f"/tasks/task?id={handle.id}")).text
        assert "<script>alert" not in page and "\x1b" not in page
        assert "10 of 20 (50 %): &lt;script&gt;" in page and 'value="10' in page
        assert page.index("Log of attempt 2") < page.index("Log of attempt 1")
        assert "5 earlier lines were not kept" in page
        assert "shop: 204 &lt;script&gt;" in page
    text = fairlead_here(tmp_path, "tasks", "show", handle.id, "--url", sqlite_url)
    assert "progress 10 of 20 (50 %)" in text and "log of attempt 2, without 5 earlier" in text
    assert "WARNING shop: 204 <script>" in text and "\x1b[31m" not in text
    listed = fairlead_here(tmp_path, "tasks", "show", handle.id, "--url", sqlite_url, "--json")
    found = json.loads(listed)
    assert (found["progress"]["done"], found["progress"]["attempt"]) == (10, 2)
    assert [len(each["log"]) for each in found["attempts"]] == [1, 200]
    assert found["attempts"][1]["log_dropped"] == 5
    app.close()


async def test_a_viewer_of_other_tenants_sees_no_notes(sqlite_url: str) -> None:
    app = App(sqlite_url, keep_log=True)

    @app.task(name="load")
    def load() -> None:
        logging.getLogger("shop").warning("secret of acme")

    handle = load.options(fairness_key="acme").submit()
    await drain(app)
    viewer = Browser(with_access(app, Access.full(tenants={"other"})))
    page = await viewer.get(f"/tasks/task?id={handle.id}")
    assert page.status_code == 404 and "secret of acme" not in page.text
    app.close()
