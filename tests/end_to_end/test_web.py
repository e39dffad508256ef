"""`fairlead web` and `fairlead demo --web` as processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from fairlead.cli import web
from fairlead.cli.application import load
from fairlead.cli.main import app as command
from tests.consoles import serving
from tests.end_to_end.test_command_line import pause

pytestmark = pytest.mark.system_time

MODULE = """
from fairlead import App

app = App("sqlite:///tasks.db")
app.migrate()

@app.task(queue="mail")
def send() -> None: ...
"""

RIGHTS = """
from fairlead.web import Access

def authorize(request):
    return Access.read() if request.headers.get("x-user") == "ada" else Access.none()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(MODULE)
    return tmp_path


def test_the_address_opens_the_console_and_ctrl_c_ends_it_with_a_stream_open(folder: Path) -> None:
    with serving(folder, "web", "shop:app") as (process, base, token):
        with httpx.Client(base_url=base, follow_redirects=True) as browser:
            page = browser.get(f"/login?token={token}")
            assert page.status_code == 200 and "<h1>Overview</h1>" in page.text
            with browser.stream("GET", "/live") as stream:
                lines = stream.iter_lines()
                assert next(lines).startswith("retry:")
                process.send_signal(signal.SIGINT)
                assert all(not line or line.startswith(("event", "data")) for line in lines)
        assert process.wait() == 0
        assert process.stderr is not None
        errors = process.stderr.read()
        assert token not in errors and "Traceback" not in errors
        assert errors.count("\n") == 1  # the line that explains the address


def refusal(folder: Path, *words: str) -> str:
    """Return what `fairlead web shop:app` says when it refuses an option."""
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", "web", "shop:app", *words],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_a_function_gives_viewers_their_access_and_no_token_opens_the_console(folder: Path) -> None:
    with (folder / "shop.py").open("a") as module:
        module.write(RIGHTS)
    with serving(folder, "web", "shop:app", "--authorize", "shop:authorize") as (_, base, token):
        assert token is None
        for user, status in (("ada", 200), ("eve", 403)):
            headers = {"accept": "text/html", "x-user": user}
            assert httpx.get(f"{base}/queues", headers=headers).status_code == status
    for wrong, said in (
        ("shop:nothing", "shop has nothing named 'nothing'"),
        ("shop", "give MODULE:NAME"),
        ("nowhere:authorize", "no module named 'nowhere'"),
    ):
        assert said in refusal(folder, "--authorize", wrong)


def test_the_mask_of_the_command_hides_arguments(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "masked.py").write_text(
        f"{MODULE}\ndef hide(name, _): return f'hidden of {{name}}'\n"
    )
    monkeypatch.chdir(folder)
    made = web.made(load("masked:app"), web.ServeOptions(mask="masked:hide"))
    assert made.parts.settings.mask is not None
    assert made.parts.settings.mask("send", {"to": "a"}) == "hidden of send"
    made.parts.app.close()
    assert "has nothing named" in refusal(folder, "--mask", "shop:missing")


def test_a_port_that_is_taken_is_one_line_and_exit_code_2(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = subprocess.run(
            [sys.executable, "-m", "fairlead", "web", "shop:app", "--port", port],
            cwd=folder,
            capture_output=True,
            text=True,
        )
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.count("\n") == 1 and "--port 0" in ended.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_machines_are_served_only_with_a_token(
    folder: Path, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delenv("FAIRLEAD_WEB_TOKEN", raising=False)
    ended = CliRunner().invoke(command, ["web", "shop:app", "--host", host])
    assert ended.exit_code == 2 and "FAIRLEAD_WEB_TOKEN" in ended.stderr
    ended = CliRunner().invoke(command, ["web", "shop:app", "--host", host, "--token", "short"])
    assert ended.exit_code == 2 and "16 characters" in ended.stderr


@pytest.mark.parametrize("by_option", [False, True], ids=["environment", "option"])
def test_a_token_of_a_person_is_printed_nowhere(folder: Path, by_option: bool) -> None:
    token = "a-token-of-a-person"  # noqa: S105
    words = ["--token", token] if by_option else []
    given = {} if by_option else {"FAIRLEAD_WEB_TOKEN": token}
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlead", "web", "shop:app", "--port", "0", *words],
        cwd=folder,
        env=os.environ | given,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.endswith("/login"), address
        response = httpx.post(address, data={"token": token})
        assert response.status_code == 303
        process.send_signal(signal.SIGINT)
        errors = process.communicate()[1]
    finally:
        process.kill()
        process.wait()
    assert token not in errors
    assert ("shows in the list of processes" in errors) is by_option


def test_the_demo_shows_its_workload_on_the_console(tmp_path: Path) -> None:
    words = ("demo", "--web")
    with serving(tmp_path, *words) as (process, base, token):
        with httpx.Client(base_url=base, follow_redirects=True) as browser:
            browser.get(f"/login?token={token}")
            while "partners" not in (page := browser.get("/queues")).text:
                assert page.status_code == 200
                pause(process)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0


def test_an_option_shows_sharded_queues_of_a_module(folder: Path, redis_url: str) -> None:
    lines = "\nfrom fairlead.sharded import SyncShardedQueue\n"
    lines += f"images = SyncShardedQueue({redis_url!r}, 'images')\n"
    with (folder / "shop.py").open("a") as module:
        module.write(lines)
    words = ("web", "shop:app", "--sharded", "shop:images")
    with serving(folder, *words) as (_, base, token):
        headers = {"accept": "text/html", "authorization": f"Bearer {token}"}
        page = httpx.get(f"{base}/sharded", headers=headers)
        assert page.status_code == 200 and "images" in page.text
    for wrong, said in (
        ("shop:nothing", "shop has nothing named 'nothing'"),
        ("shop", "give MODULE:NAME"),
        ("shop:app", "give queues as SyncShardedQueue"),
    ):
        assert said in refusal(folder, "--sharded", wrong)
