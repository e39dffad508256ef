"""Progress and log lines of a task, as its screen, the command line, the JSON API and the MCP server
show them: as text, and to those who may see the task."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Any

from fairlead import App, Fixed, current_task
from fairlead.operate.task_detail import task_detail
from fairlead.testing import drain
from fairlead.web import Access
from fairlead.web.mcp import McpServer
from tests.end_to_end.test_command_line import fairlead_here
from tests.web.browsing import Browser, assistant, with_access

API = "/api/v1"
HOSTILE = "<script>alert(1)</script>\x1b[31m"


async def loaded(app: App) -> str:
    """Return the id of a task of acme whose two attempts have progress and hostile log lines."""

    @app.task(name="load", retry=Fixed(0.001, max_attempts=2), keep_log=True)
    def load() -> None:
        task = current_task()
        assert task is not None
        task.progress(5 * task.attempt, 20, HOSTILE)
        for n in range(205 if task.attempt == 2 else 1):
            logging.getLogger("shop").warning("%d %s", n, HOSTILE)
        if task.attempt == 1:
            raise ValueError("again")

    handle = load.options(fairness_key="acme").submit()
    await drain(app)
    return handle.id


async def test_the_screen_and_the_command_show_progress_and_log_lines_as_text(
    sqlite_url: str, tmp_path: Path
) -> None:
    app = App(sqlite_url)
    task_id = await loaded(app)
    for access in (Access.full(), Access.full(tenants={"acme"})):
        page = (await Browser(with_access(app, access)).get(f"/tasks/task?id={task_id}")).text
        assert "<script>alert" not in page and "\x1b" not in page
        assert "10 of 20 (50 %): &lt;script&gt;" in page and 'value="10' in page
        assert page.index("Log of attempt 2") < page.index("Log of attempt 1")
        assert "5 earlier lines were not kept" in page
        assert "shop: 204 &lt;script&gt;" in page
    show = ("tasks", "show", task_id, "--url", sqlite_url)
    text = await asyncio.to_thread(fairlead_here, tmp_path, *show)
    assert re.search(r"done +10 *\ntotal +20 *\n", text) and re.search(r"dropped +5 *\n", text)
    assert "204 <script>" in text and "\x1b[31m" not in text
    check(json.loads(await asyncio.to_thread(fairlead_here, tmp_path, *show, "--json")))
    app.close()


async def test_the_api_and_the_mcp_server_show_progress_and_log_lines(sqlite_url: str) -> None:
    app = App(sqlite_url)
    task_id = await loaded(app)
    for access in (Access.full(), Access.read(tenants={"acme"})):
        response = await Browser(with_access(app, access)).client.get(f"{API}/tasks/{task_id}")
        check(response.json())
    server = McpServer(assistant(app, {"acme"}), is_operator=False)
    call = {"name": "task", "arguments": {"id": task_id}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    response = json.loads(server.respond(json.dumps(message).encode()) or b"")
    found = json.loads(response["result"]["content"][0]["text"])
    assert found["progress"]["note"] == HOSTILE.replace("\x1b", "\\x1b")
    found["progress"]["note"] = HOSTILE
    check(found)
    app.close()


def check(found: Any) -> None:
    """Check the document of the task that `loaded` returns."""
    progress = found["progress"]
    assert (progress["done"], progress["total"], progress["attempt"]) == (10, 20, 2)
    assert progress["note"] == HOSTILE and progress["at"].endswith("Z")
    assert [(log["attempt"], len(log["lines"]), log["dropped"]) for log in found["logs"]] == [
        (1, 1, 0),
        (2, 200, 5),
    ]
    last = found["logs"][1]["lines"][-1]
    assert (last["level"], last["logger"]) == ("WARNING", "shop")
    assert last["text"].startswith("204 <script>") and last["at"].endswith("Z")
    assert found["more_logs"] == 0


async def test_logs_beyond_the_bound_of_a_response_are_counted(sqlite_url: str) -> None:
    app = App(sqlite_url, keep_log=True)

    @app.task(name="load", retry=Fixed(0.001, max_attempts=5))
    def load() -> None:
        for _ in range(8):
            logging.getLogger("shop").warning("x" * 4000)
        raise ValueError("again")

    handle = load.submit()
    await drain(app)
    found = task_detail(assistant(app), handle.id)
    assert [each.attempt for each in found.logs] == [3, 4, 5] and found.more_logs == 2
    page = (await Browser(with_access(app, Access.full())).get(f"/tasks/task?id={handle.id}")).text
    assert page.count("Log of attempt") == 3 and "log of 2 earlier attempts is not shown" in page
    app.close()
