"""`fairlead mcp` as a process, driven by the client of the official package and by raw lines."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import mcp
import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app as command
from tests.web.api_kit import SECRET, fill, shop

pytestmark = pytest.mark.system_time

ROOT = Path(__file__).parents[2]
MODULE = """
print("the module prints to standard output")
from tests.web.api_kit import shop
app = shop("sqlite:///shop.db").app

def hide(name, arguments):
    return {**arguments, "number": f"hidden of {name}"}
"""
TOOLS = ["overview", "tenants", "tenant", "tenant_why", "queues", "queue"]
TOOLS += ["tasks", "task", "task_why", "doctor"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an application and its tasks."""
    folder = tmp_path_factory.mktemp("mcp")
    (folder / "shop_app.py").write_text(MODULE)
    asyncio.run(fill(shop(f"sqlite:///{folder}/shop.db"))).close()
    return folder


def client(folder: Path, *words: str) -> mcp.Client:
    """Return a client that starts the server as a process of its own."""
    return mcp.Client(
        mcp.StdioServerParameters(
            command=sys.executable,
            args=["-m", "fairlead", "mcp", "shop_app:app", *words],
            env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            cwd=folder,
        )
    )


async def call(opened: mcp.Client, name: str, **arguments: Any) -> Any:
    """Return what a tool found."""
    result = await opened.call_tool(name, arguments)
    text = text_of(result)
    assert not result.is_error, text
    return json.loads(text)


def text_of(result: Any) -> str:
    (content,) = result.content
    return str(content.text)


async def test_an_assistant_finds_out_why_a_tenant_waits(folder: Path) -> None:
    async with client(folder) as opened:
        assert opened.server_info is not None and opened.server_info.name == "fairlead"
        assert "never instructions" in (opened.instructions or "")
        tools = (await opened.list_tools()).tools
        assert [tool.name for tool in tools] == TOOLS
        for tool in tools:
            assert tool.annotations is not None and tool.annotations.read_only_hint
            assert "never instructions" in (tool.description or "")
            assert tool.input_schema["additionalProperties"] is False
        why = await call(opened, "tenant_why", key="acme")
        assert why["tenant"]["tenant"] == "acme"
        assert why["tenant"]["backlog"]["number"] == 9
        assert [cause["kind"] for cause in why["tenant"]["why"]] == ["no_worker"]
        kinds = {reason["kind"] for each in why["oldest"] for reason in each["reasons"]}
        assert kinds == {"in_error"}
        (ready,) = (await call(opened, "tasks", tenant="acme", state="SUBMITTED", rows=1))["tasks"]
        reasons = (await call(opened, "task_why", id=ready["id"]))["reasons"]
        assert "read by nobody" in reasons[-1]["what"] and "fairlead worker" in str(reasons)


async def test_every_tool_works_and_shows_no_arguments_without_a_mask(folder: Path) -> None:
    async with client(folder) as opened:
        (ready,) = (await call(opened, "tasks", state="SUBMITTED", rows=1))["tasks"]
        given: dict[str, dict[str, Any]] = {
            "tenant": {"key": "acme"},
            "tenant_why": {"key": "acme"},
            "task": {"id": ready["id"]},
            "task_why": {"id": ready["id"]},
            "queue": {"name": "mail"},
        }
        for name in TOOLS:
            result = await opened.call_tool(name, given.get(name, {}))
            text = text_of(result)
            assert not result.is_error and json.loads(text), (name, text)
            assert not any(obeyed in text for obeyed in ("\u202e", "\x1b", "\\u001b"))
        task = await call(opened, "task", id=ready["id"])
        assert "arguments" not in task and "mask" in task["arguments_hidden"]


async def test_a_server_of_one_tenant_shows_no_other_one_and_arguments_through_the_mask(
    folder: Path,
) -> None:
    app = shop(f"sqlite:///{folder}/shop.db").app
    foreign = app.management.find(tenant="umbrella")[0].id
    app.close()
    async with client(folder, "--tenant", "acme", "--mask", "shop_app:hide") as opened:
        (ready,) = (await call(opened, "tasks", state="SUBMITTED", rows=1))["tasks"]
        task = await call(opened, "task", id=ready["id"])
        assert "hidden of send" in task["arguments"] and str(2**62) not in task["arguments"]
        for name, arguments in (
            ("overview", {}),
            ("tenants", {"search": "umb"}),
            ("tenant", {"key": "umbrella"}),
            ("tasks", {"tenant": "umbrella"}),
            ("tasks", {}),
            ("task", {"id": foreign}),
            ("task_why", {"id": foreign}),
            ("tenant_why", {"key": "umbrella"}),
            ("queues", {}),
            ("queue", {"name": "mail"}),
            ("queue", {"name": "ledger"}),
        ):
            result = await opened.call_tool(name, arguments)
            text = text_of(result)
            assert SECRET not in text, name
            assert result.is_error or "umbrella" not in text, name
        refused = await opened.call_tool("doctor", {})
        assert refused.is_error and "all tenants" in text_of(refused)


async def test_wrong_arguments_are_errors_that_name_the_cure(folder: Path) -> None:
    async with client(folder) as opened:
        for name, arguments, word in (
            ("tasks", {"rows": 1000}, "rows"),
            ("tasks", {"client": "acme"}, "client"),
            ("tasks", {"state": "LOST"}, "state"),
            ("tasks", {"argument": "number=0"}, "cannot be searched"),
            ("task_why", {}, "id"),
            ("task", {"id": "unknown"}, "unknown"),
            ("queue", {"name": "unknown"}, "unknown"),
        ):
            result = await opened.call_tool(name, arguments)
            assert result.is_error and word in text_of(result), name
        with pytest.raises(mcp.MCPError, match="no tool"):
            await opened.call_tool("cancel", {"id": "x"})


def test_odd_lines_get_errors_and_the_server_goes_on(folder: Path) -> None:
    lines = [
        b"no JSON",
        b"[]",
        b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}',
        b"[" * 100_000,
        b'"\xff"',
        b"x" * (3 << 20),
        b"",
        b'{"jsonrpc": "2.0", "method": "notifications/initialized"}',
        b'{"jsonrpc": "2.0", "id": 7, "result": {}}',
        b'{"jsonrpc": "2.0", "id": 8, "method": "resources/list"}',
        b'{"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": 7}}',
        b'{"jsonrpc": "2.0", "id": 10, "method": "tools/call",'
        b' "params": {"name": "tenant", "arguments": [7]}}',
        b'{"jsonrpc": "2.0", "id": 11, "method": "initialize",'
        b' "params": {"protocolVersion": "2024-11-05"}}',
        b'{"jsonrpc": "2.0", "id": 12, "method": "initialize", "params": {}}',
        b'{"jsonrpc": "2.0", "id": "last", "method": "ping"}',
    ]
    ended = subprocess.run(
        [sys.executable, "-m", "fairlead", "mcp", "shop_app:app"],
        cwd=folder,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        input=b"\n".join(lines),
        capture_output=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert b"the module prints" in ended.stderr and b"Traceback" not in ended.stderr
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    codes = [each.get("error", {}).get("code") for each in found]
    assert codes[:6] == [-32700, -32600, -32600, -32600, -32600, -32600]
    assert [each["id"] for each in found[6:]] == [8, 9, 10, 11, 12, "last"]
    assert codes[6:] == [-32601, -32602, None, None, None, None]
    assert found[8]["result"]["isError"]
    assert found[9]["result"]["protocolVersion"] == "2024-11-05"
    assert found[10]["result"]["protocolVersion"] == "2025-11-25"


def test_wrong_use_is_one_line_and_exit_code_2(folder: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "fairlead", "mcp", "shop_app:app", "--mask", "shop_app:missing"],
        cwd=folder,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        input=b"",
        capture_output=True,
    )
    assert ended.returncode == 2 and ended.stdout == b""
    assert b"nothing named 'missing'" in ended.stderr and b"Traceback" not in ended.stderr


def test_the_help_says_that_nothing_is_changed() -> None:
    ended = CliRunner().invoke(command, ["mcp", "--help"])
    assert ended.exit_code == 0 and "change nothing" in " ".join(ended.stdout.split())
