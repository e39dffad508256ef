"""The end of a worker process: with `--until-empty`, when handlers leave something running, and not
by the signals of processes that handlers fork."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from fairlead import App
from fairlead.cli.serve import _serve
from fairlead.engine.node import Node
from fairlead.errors import StoreRefused, StoreUnavailable
from fairlead.supervisor.health import NodeHealth
from services.process import free_port
from tests import tiers
from tests.end_to_end.test_command_line import environment, start_worker


@pytest.mark.virtual_time
async def test_until_empty_survives_an_outage_of_the_store(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(sqlite_url)
    app.migrate()
    unfinished, failures = Node.unfinished, iter([StoreUnavailable("cut")])

    async def cut(node: Node) -> tuple[int, int]:
        if failure := next(failures, None):
            raise failure
        return await unfinished(node)

    monkeypatch.setattr(Node, "unfinished", cut)
    node = app.node()
    async with asyncio.timeout(60):
        await _serve(node, until_empty=True, health=NodeHealth(node))
    app.close()


async def begun(app: App) -> tuple[Node, asyncio.Task[None]]:
    """Start a node, and wait until it serves or says for which server it waits."""
    node = app.node()
    run = asyncio.create_task(node.run())
    while node.waits_for is None and not node.ready.is_set() and not run.done():
        await asyncio.sleep(0.01)
    return node, run


async def test_a_worker_that_starts_while_its_store_is_away_waits_and_then_serves(
    migrated_postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    there, port, ran = urlsplit(migrated_postgres_url), free_port(), asyncio.Event()
    user, _, _ = there.netloc.rpartition("@")
    app = App(there._replace(netloc=f"{user}@127.0.0.1:{port}").geturl())

    @app.periodic("0 0 1 1 *")
    @app.task
    async def note() -> None:
        ran.set()

    async def relay(*client: Any) -> None:
        server = await asyncio.open_connection(there.hostname, there.port)
        await asyncio.gather(carry(client[0], server[1]), carry(server[0], client[1]))

    node, run = await begun(app)
    health = NodeHealth(node, start_timeout=0.0)
    watching = asyncio.create_task(health.run())
    await asyncio.sleep(0)
    found = health.check()
    assert (found.live, found.ready, found.waits) == (True, False, True)
    assert "Connection refused" in (found.reason or "") and caplog.text.count("waits for") == 1
    async with await asyncio.start_server(relay, "127.0.0.1", port), asyncio.timeout(60):
        await node.ready.wait()
        await note.submit_async()
        await ran.wait()
        watching.cancel()
        node.stop()
        await run
        await asyncio.to_thread(app.close)


async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        target.write(data)
    target.close()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("missing", 'database "missing" does not exist'),
        ("nobody:wrong@", 'role "nobody" does not exist|authentication failed'),
        ("nobody@", "no password supplied"),
        ("sqlite:////missing/shop.db", "cannot open /missing/shop.db: there is no folder /missing"),
    ],
)
def test_a_worker_with_a_wrong_url_waits_for_nothing(
    postgres_url: str, url: str, expected: str
) -> None:
    before, _, after = postgres_url.partition("@")
    if url.endswith("@"):
        url = f"postgresql://{url}{after}"
    elif not url.startswith("sqlite"):
        url = f"{before}@{after.partition('/')[0]}/{url}"
    with pytest.raises(StoreRefused, match=expected):
        App(url).node()


@pytest.mark.parametrize(
    ("servers", "waits"),
    [
        ({"coordinator": "zookeeper://127.0.0.1:1"}, True),
        ({"channel": "kafka://127.0.0.1:1"}, False),
        ({"backlog": "cassandra://127.0.0.1:1/shop"}, False),
    ],
    ids=["ZooKeeper", "Kafka", "Cassandra"],
)
async def test_a_worker_starts_while_another_server_is_away(
    sqlite_url: str, servers: dict[str, str], waits: bool
) -> None:
    App(sqlite_url).migrate()
    app = App(sqlite_url, **servers)
    app.queue("default", order="fair")
    node, run = await begun(app)
    assert (node.waits_for is not None) == waits
    node.stop()
    await run
    await asyncio.to_thread(app.close)


LEFT = """
import asyncio, os, threading
import fairlead
app = fairlead.App("sqlite:///shop.db")
endless = threading.Event()

def say(word):
    os.write(1, (word + "\\n").encode())

async def stubborn():
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass

@app.task
async def waits_in_a_thread() -> None:
    say("running")
    await asyncio.to_thread(endless.wait)

@app.task
async def leaves_a_thread() -> None:
    threading.Thread(target=endless.wait).start()
    say("running")

@app.task
async def leaves_an_asyncio_task() -> None:
    app.left = asyncio.create_task(stubborn())
    say("running")

@app.task(retry=fairlead.NoRetry())
async def fails() -> None:
    raise ValueError

async def tell(incident):
    say("running")
    await stubborn()

app.on_incident = tell
"""


@pytest.mark.parametrize(
    "name",
    tiers.matrix("waits_in_a_thread", "leaves_a_thread", "leaves_an_asyncio_task", "fails"),
)
def test_a_worker_ends_although_a_handler_or_a_callback_left_something_running(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "shop.py").write_text(LEFT)
    begin = f"import shop; shop.app.migrate(); shop.{name}.submit()"
    subprocess.run([sys.executable, "-c", begin], cwd=tmp_path, env=environment(), check=True)
    worker = start_worker(tmp_path, "--drain", "0", stderr=subprocess.DEVNULL)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "running\n"
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.wait(60) == 0


FORKS = """
import multiprocessing, time
import fairlead
app = fairlead.App("sqlite:///shop.db")
fork = multiprocessing.get_context("fork")

@app.task(keep_result=True)
def pool() -> list[int]:
    with fork.Pool(2) as pool:  # ends its processes by SIGTERM
        return pool.map(abs, [-1, -2])

@app.task(keep_result=True)
def process() -> int:
    child = fork.Process(target=time.sleep, args=(600,))
    child.start()
    child.terminate()
    child.join()
    return child.exitcode

@app.task(name="next", keep_result=True)
async def next_one() -> str:
    return "still here"
"""


@pytest.mark.parametrize("options", [(), ("--workers", "1")])
def test_a_signal_to_a_process_that_a_handler_forked_ends_that_process_and_no_worker(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "shop.py").write_text(FORKS)
    app = App(f"sqlite:///{tmp_path}/shop.db")
    app.migrate()
    begin = "import shop; print(shop.pool.submit().id, shop.process.submit().id)"
    begun = subprocess.run(
        [sys.executable, "-c", begin],
        cwd=tmp_path,
        env=environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    log = tmp_path / "worker.log"
    with log.open("w") as stderr:
        worker = start_worker(tmp_path, *options, stderr=stderr)
    pool, process = map(app.handle, begun.stdout.split())
    try:
        assert pool.result(timeout=60) == [1, 2]
        assert process.result(timeout=60) == -signal.SIGTERM
        assert "stopping" not in log.read_text()
    finally:
        os.kill(worker.pid, signal.SIGTERM)
        assert worker.wait(60) == 0
        app.close()
