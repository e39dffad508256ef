"""The states of a real Redis that pass: queues raise StoreUnavailable with the cause, workers wait
and go on, and the doctor names the state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

pytest.importorskip("redis", reason="needs the extra redis")
from fairlead import App  # noqa: E402
from fairlead.errors import ConfigurationError, StoreUnavailable  # noqa: E402
from fairlead.operate.doctor import examine  # noqa: E402
from fairlead.sharded import Empty, ShardedQueue, SyncShardedQueue  # noqa: E402
from fairlead.testing import running, settled  # noqa: E402
from tests.redis_states import (  # noqa: E402
    PASSING,
    DrivenServer,
    driven_server,
    new_password,
    no_permission,
    restarting_replica,
)
from tests.sharded_queues import Awaited, until  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("redis_server"),  # skips the tests without Redis
]

states = pytest.mark.parametrize("code", PASSING)


class Waiting(logging.Handler):
    """Collects the outages of Redis that workers log, and their ends."""

    def __init__(self) -> None:
        super().__init__()
        self.causes: list[str] = []
        self.ends = 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == "waiting for Redis":
            self.causes.append(record.error)  # type: ignore[attr-defined]
        self.ends += record.getMessage() == "Redis works again"


@pytest.fixture
def waiting() -> Any:
    handler, logger = Waiting(), logging.getLogger("fairlead.redis")
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.INFO)
    yield handler
    logger.setLevel(before)
    logger.removeHandler(handler)


@contextmanager
def a_queue(kind: str, url: str) -> Any:
    if kind == "synchronous":
        with SyncShardedQueue(url, "q") as queue:
            yield Awaited(queue)
    else:
        yield ShardedQueue(url, "q")


@states
@pytest.mark.parametrize("kind", ["asynchronous", "synchronous"])
async def test_a_queue_raises_the_cause_while_the_state_lasts_and_works_afterwards(
    code: str, kind: str
) -> None:
    with driven_server(code) as (server, client), a_queue(kind, server.url) as queue:
        kept = await queue.write({"n": 1})
        with PASSING[code](server, client):
            with pytest.raises(StoreUnavailable, match=code):
                await queue.write({"n": 2})
            if code != "OOM":  # readers empty a full server
                with pytest.raises(StoreUnavailable, match=code):
                    await queue.read("g", "c")
        other = await queue.write({"n": 3})
        assert {(await queue.read("g", "c")).id for _ in range(2)} == {kept, other}
        await queue.ack("g", kept, other)
        with pytest.raises(Empty):
            await queue.read("g", "c")
        await queue.close()


@pytest.mark.parametrize("kind", ["asynchronous", "synchronous"])
async def test_an_operator_who_unblocks_a_reader_does_not_end_its_wait(kind: str) -> None:
    with driven_server() as (server, client), a_queue(kind, server.url) as queue:
        reading = asyncio.create_task(queue.read("g", "c", block=20.0))

        def blocked() -> list[Any]:
            return [one["id"] for one in client.client_list() if "b" in one["flags"]]

        for _ in range(3):
            await until(lambda: bool(blocked()))
            assert client.client_unblock(blocked()[0], error=True) == 1
        written = await queue.write({"n": 1})
        assert (await reading).id == written
        await queue.close()


async def run_through(
    app: App, enter: Callable[[], Any], waiting: Waiting, code: str, submits: bool
) -> list[int]:
    """Run a worker before, during and after a state, and return the tasks that ran."""
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    async with running(app) as node:
        note.submit(1)
        await settled(app, node)
        with enter():
            if submits:
                note.submit(2)
            else:
                with pytest.raises(StoreUnavailable, match=code):
                    await asyncio.to_thread(note.submit, 2)
            if code != "OOM":  # a full server lets workers read
                await until(lambda: any(code in cause for cause in waiting.causes))
        note.submit(3)
        await settled(app, node)
        if waiting.causes:
            await until(lambda: waiting.ends > 0)
    return ran


@contextmanager
def app_on(role: str, server: DrivenServer, sqlite_url: str) -> Any:
    """Yield an application that has the server as its store, or as its channel."""
    url = f"{server.url}?reclaim=2"
    app = App(url) if role == "store" else App(sqlite_url, channel=url)
    app.migrate()
    yield app
    app.close()


@states
async def test_a_worker_on_redis_alone_waits_and_goes_on(code: str, waiting: Waiting) -> None:
    with driven_server(code) as (server, client), app_on("store", server, "") as app:
        ran = await run_through(app, lambda: PASSING[code](server, client), waiting, code, False)
    assert sorted(ran) == [1, 3]
    causes = [cause for cause in waiting.causes if code in cause]
    # A full server may refuse the claims too, or only the submit.
    assert len(causes) in ([0, 1] if code == "OOM" else [1]), "one line for one outage"


@states
async def test_a_worker_with_triggers_through_redis_waits_and_loses_no_task(
    code: str, sqlite_url: str, waiting: Waiting
) -> None:
    with driven_server(code) as (server, client), app_on("channel", server, sqlite_url) as app:
        ran = await run_through(app, lambda: PASSING[code](server, client), waiting, code, True)
    assert sorted(ran) == [1, 2, 3]


@pytest.mark.parametrize(
    "code",
    [
        "BUSY",
        # A stop waits for 15 seconds until completions can be written.
        pytest.param("NOREPLICAS", marks=pytest.mark.full),
        pytest.param("READONLY", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("role", ["store", "channel"])
async def test_a_worker_that_stops_during_the_state_ends_without_an_error(
    code: str, role: str, sqlite_url: str
) -> None:
    with driven_server(code) as (server, client), app_on(role, server, sqlite_url) as app:
        started, gate = asyncio.Event(), asyncio.Event()

        @app.task
        async def note(n: int) -> None:
            started.set()
            await gate.wait()

        with ExitStack() as state:
            async with running(app):
                await note.submit_async(1)
                await started.wait()
                state.enter_context(PASSING[code](server, client))
                gate.set()


@states
@pytest.mark.parametrize("role", ["store", "channel"])
async def test_the_doctor_names_the_state(code: str, role: str, sqlite_url: str) -> None:
    with driven_server(code) as (server, client), app_on(role, server, sqlite_url) as app:

        @app.task
        async def note(n: int) -> None: ...

        async with running(app) as node:
            note.submit(1)
            await settled(app, node)
        assert all(found.severity != "problem" for found in await examine(app.operate_context))
        with PASSING[code](server, client):
            try:
                found = [
                    f"{each.what}; {each.cure}"
                    for each in await examine(app.operate_context)
                    if each.severity == "problem"
                ]
            except StoreUnavailable as error:  # the command prints this line alone
                found = [str(error)]
        # A replica without its master refuses the doctor's write as any replica does.
        names = ("MASTERDOWN", "READONLY") if code == "MASTERDOWN" else (code,)
        assert sum(any(name in line for name in names) for line in found) == 1, found


@pytest.mark.parametrize("kind", ["asynchronous", "synchronous"])
async def test_a_queue_works_again_when_the_replica_of_its_master_has_restarted(kind: str) -> None:
    with driven_server() as (server, client), a_queue(kind, server.url) as queue:
        kept = await queue.write({"n": 1})
        with restarting_replica(server, client):
            with pytest.raises(StoreUnavailable, match="NOREPLICAS"):
                await queue.write({"n": 2})
            with pytest.raises(StoreUnavailable, match="NOREPLICAS"):
                await queue.read("g", "c")
        assert (await queue.read("g", "c")).id == kept
        assert await queue.ack("g", kept) == 1
        await queue.close()


@pytest.mark.parametrize("role", ["store", "channel"])
async def test_a_worker_goes_on_when_the_replica_of_its_master_has_restarted(
    role: str, sqlite_url: str, waiting: Waiting
) -> None:
    with driven_server() as (server, client), app_on(role, server, sqlite_url) as app:
        submits = role == "channel"
        ran = await run_through(
            app, lambda: restarting_replica(server, client), waiting, "NOREPLICAS", submits
        )
    assert sorted(ran) == ([1, 2, 3] if submits else [1, 3])


def without_password(server: DrivenServer, client: Any) -> str:
    """Let the server need no password, and return a URL without one."""
    client.config_set("requirepass", "")
    return f"redis://127.0.0.1:{server.port}/0"


@pytest.mark.parametrize("kind", ["asynchronous", "synchronous"])
async def test_a_password_that_a_queue_does_not_have_is_an_error_with_its_cure(kind: str) -> None:
    with (
        driven_server() as (server, client),
        a_queue(kind, without_password(server, client)) as queue,
    ):
        written = await queue.write({"n": 1})
        with new_password(server, client):
            with suppress(StoreUnavailable, ConfigurationError):
                await queue.len()  # the killed connection may show first
            for call in (lambda: queue.write({"n": 2}), lambda: queue.read("g", "c")):
                with pytest.raises(ConfigurationError, match="check user and password"):
                    await call()
        assert (await queue.read("g", "c")).id == written
        await queue.close()


@pytest.mark.parametrize("role", ["store", "channel"])
async def test_a_worker_without_the_new_password_ends_with_one_cause(
    role: str, sqlite_url: str
) -> None:
    with driven_server() as (server, client):
        url = without_password(server, client)
        app = App(url) if role == "store" else App(sqlite_url, channel=url)
        app.migrate()
        started = asyncio.Event()

        @app.task
        async def note(n: int) -> None:
            started.set()

        work = asyncio.create_task(app.node().run())
        await note.submit_async(1)
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait([work, waiting], return_when=asyncio.FIRST_COMPLETED)
        assert started.is_set(), work.exception()
        with new_password(server, client):
            with pytest.raises((ExceptionGroup, ConfigurationError)) as raised:
                async with asyncio.timeout(60):
                    await work
            try:
                examined = await examine(app.operate_context)
                found = [each.what for each in examined if each.severity == "problem"]
            except ConfigurationError as error:  # the command prints this line alone
                found = [str(error)]
        app.close()
        assert isinstance(cause(raised.value), ConfigurationError)
        assert "check user and password" in str(cause(raised.value))
        assert sum("check user and password" in line for line in found) == 1, found


def cause(error: BaseException) -> BaseException:
    """Return the only error of a group."""
    while isinstance(error, ExceptionGroup):
        (error,) = error.exceptions
    return error


@pytest.mark.parametrize("kind", ["asynchronous", "synchronous"])
async def test_a_missing_permission_is_an_error_with_its_cure(kind: str) -> None:
    with driven_server() as (server, client), a_queue(kind, server.url) as queue:
        await queue.write({"n": 1})
        with no_permission(server, client):
            for call in (lambda: queue.write({"n": 2}), lambda: queue.read("g", "c")):
                with pytest.raises(ConfigurationError, match="extend its ACL"):
                    await call()
        await queue.read("g", "c")
        await queue.close()


@pytest.mark.parametrize("kind", ["asynchronous", "synchronous"])
async def test_a_changed_password_is_an_error_with_its_cure(kind: str) -> None:
    with driven_server() as (server, client), a_queue(kind, server.url) as queue:
        await queue.write({"n": 1})
        client.config_set("requirepass", "another")
        client.client_kill_filter(skipme=True, _type="normal")
        with suppress(StoreUnavailable):  # the killed connection may show first
            with pytest.raises(ConfigurationError, match="check user and password"):
                await queue.write({"n": 2})
        with pytest.raises(ConfigurationError, match="check user and password"):
            await queue.write({"n": 2})
        await queue.close()


@pytest.mark.parametrize("role", ["store", "channel"])
async def test_a_worker_without_permission_ends_with_one_cause(role: str, sqlite_url: str) -> None:
    with driven_server() as (server, client), app_on(role, server, sqlite_url) as app:
        started = asyncio.Event()

        @app.task
        async def note(n: int) -> None:
            started.set()

        work = asyncio.create_task(app.node().run())
        await note.submit_async(1)
        await started.wait()
        client.execute_command("ACL", "SETUSER", "default", "-evalsha", "-eval", "-xreadgroup")
        client.client_kill_filter(skipme=True, _type="normal")
        with pytest.raises((ExceptionGroup, ConfigurationError)) as raised:
            await work
        error = cause(raised.value)
        assert isinstance(error, ConfigurationError) and "NOPERM" in str(error)
        client.execute_command("ACL", "SETUSER", "default", "+@all")
