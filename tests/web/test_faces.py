"""Each operation is the same in the JSON API, as a tool and as a command: arguments, rights, scope
and texts of errors."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from fairlead import App
from fairlead.cli.main import app as commands
from fairlead.errors import NotAllowed
from fairlead.operate.caller import NoRight
from fairlead.operate.change_operations import CHANGING
from fairlead.operate.operations import Arguments, Operation
from fairlead.operate.read_operations import READS
from fairlead.web import Access
from fairlead.web.api.routes import OPERATIONS
from fairlead.web.mcp import TOOLS, McpServer
from tests.web.browsing import SAME_ORIGIN, Browser, assistant, with_access

API = "/api/v1"
ALL = [*READS, *CHANGING]

on_each = pytest.mark.parametrize("operation", ALL, ids=[each.name for each in ALL])


def flat(arguments: type[msgspec.Struct]) -> set[str]:
    """Return the names of arguments, those of a filter or a search one by one."""
    names = set[str]()
    for field in msgspec.structs.fields(arguments):
        default = field.default_factory() if callable(field.default_factory) else field.default
        inner = getattr(type(default), "__struct_fields__", ())
        names |= set(inner) or {field.name}
    return names - {"matching"} | ({"search"} if "matching" in names else set())


async def described(app: App, operation: Operation) -> Any:
    """Return what the OpenAPI document says of an operation."""
    browser = Browser(with_access(app, Access.full()))
    document = (await browser.client.get(f"{API}/openapi.json")).json()
    methods = document["paths"][API + str(operation.path)]
    (found,) = methods.values()
    assert list(methods) == ["get" if operation.is_read else "post"]
    return found, document["components"]["schemas"]


def test_every_operation_has_a_face_and_every_face_an_operation() -> None:
    assert all(each.path or each.command for each in ALL)
    assert {each.name for each in OPERATIONS} >= {each.name for each in ALL if each.path}
    assert set(TOOLS) == {each.name for each in READS if each.is_tool}
    named = [each.command for each in ALL if each.command]
    assert len(named) == len(set(named))


@on_each
async def test_the_json_api_takes_the_arguments(app: App, operation: Operation) -> None:
    if operation.path is None:
        return
    found, schemas = await described(app, operation)
    taken = {each["name"] for each in found["parameters"]} - {"no_key"}
    if "requestBody" in found:
        schema = found["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        taken |= set(schemas[schema.rpartition("/")[2]]["properties"])
    assert taken == set(operation.arguments.__struct_fields__)


@on_each
def test_the_command_takes_the_arguments(operation: Operation) -> None:
    if operation.command is None:
        return
    command: Any = typer.main.get_command(commands)
    for word in operation.command.split():
        command = command.commands[word]
    taken = {each.name for each in command.params}
    general = {"url", "app", "json", "help", *({"actor"} if not operation.is_read else ())}
    of_many = {"yes", "dry_run"} if operation.preview else {"yes"} if operation.is_final else set()
    of_named = {"ids", "version"} if operation.named else set()
    assert taken - {"help"} == flat(operation.arguments) | general - {"help"} | of_many | of_named


def test_a_tool_takes_the_arguments(app: App) -> None:
    listed = ask(app, "tools/list")["result"]["tools"]
    taken = {each["name"]: set(each["inputSchema"]["properties"]) for each in listed}
    assert taken == {name: set(tool.arguments.__struct_fields__) for name, tool in TOOLS.items()}


@on_each
async def test_who_may_not_is_refused_by_each_face(app: App, operation: Operation) -> None:
    """A reader may change nothing; a person of one tenant sees nothing that is of all."""
    if operation.right is not None:
        rights = {operation.right} if isinstance(operation.right, str) else operation.right
        with pytest.raises(NoRight, match=f"the action {min(rights)}"):
            operation.call(assistant(app), Arguments())
    elif not operation.scoped:
        with pytest.raises(NotAllowed, match="limited to some"):
            operation.call(assistant(app, {"acme"}), Arguments())
    if operation.path is None or (operation.is_read and operation.scoped):
        return
    access = Access.read({"acme"}) if operation.is_read else Access.read()
    browser = Browser(with_access(app, access))
    await browser.get("/")
    path = API + operation.path.format(id="1")
    if operation.is_read:
        response = await browser.client.get(path)
    else:
        headers = {**SAME_ORIGIN, "x-csrf-token": browser.csrf}
        response = await browser.client.post(path, json={}, headers=headers)
    assert response.status_code == 403, response.text


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("task", {"id": "unknown"}, ["unknown"]),
        ("queue", {"name": "unknown"}, ["unknown"]),
        ("tenants", {"order": "odd"}, ["--order", "odd"]),
        ("tasks", {"after": "zz"}, ["--after", "zz"]),
        ("tasks", {"argument": "x", "name": "send"}, ["--argument", "x", "--name", "send"]),
    ],
)
async def test_an_error_has_the_same_text_in_each_face(
    app: App, name: str, given: dict[str, str], words: list[str]
) -> None:
    operation = TOOLS[name]
    browser = Browser(with_access(app, Access.full()))
    path = API + str(operation.path).format(**given)
    query = {key: value for key, value in given.items() if key not in operation.in_path}
    text = (await browser.client.get(path, params=query)).json()["error"]["detail"]
    caller = assistant(app, mask=lambda _name, arguments: arguments)
    said = ask(app, "tools/call", {"name": name, "arguments": given}, caller)
    assert said["result"]["isError"] and said["result"]["content"][0]["text"].endswith(text)
    line = [*str(operation.command).split(), *words, "--url", app.url]
    done = await asyncio.to_thread(CliRunner().invoke, commands, line)
    assert done.stderr == f"fairlead: {text}\n"


def ask(app: App, method: str, params: Any = None, caller: Any = None) -> Any:
    """Return the response of a server of tools."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
    server = McpServer(caller or assistant(app), is_operator=True)
    return msgspec.json.decode(server.respond(msgspec.json.encode(message)) or b"")
