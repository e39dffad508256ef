"""Resources of handlers: made once for a process or for each run, closed in reverse order, replaced
in tests."""

import asyncio
import importlib
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import MagicMock

import pytest

import fairlead
from fairlead import INJECTED, App, Fixed, Resource, State
from fairlead.errors import ConfigurationError, InvalidTask
from fairlead.testing import drain, running, settled

EVENTS: list[str] = []


@pytest.fixture(autouse=True)
def _no_events() -> None:
    EVENTS.clear()


class Client:
    def __init__(self, name: str = "client") -> None:
        self.name = name

    def __enter__(self) -> "Client":
        EVENTS.append(f"open {self.name}")
        return self

    def __exit__(self, *error: object) -> None:
        EVENTS.append(f"close {self.name} {error[0].__name__ if error[0] else None}")


def plain() -> str:
    EVENTS.append("make plain")
    return "plain"


async def awaited() -> str:
    await asyncio.sleep(0)
    EVENTS.append("make awaited")
    return "awaited"


def yielded() -> Iterator[str]:
    EVENTS.append("open yielded")
    try:
        yield "yielded"
    finally:
        EVENTS.append("close yielded")


async def yielded_async() -> AsyncIterator[str]:
    await asyncio.sleep(0)
    EVENTS.append("open yielded_async")
    try:
        yield "yielded_async"
    finally:
        await asyncio.sleep(0)
        EVENTS.append("close yielded_async")


@contextmanager
def managed() -> Iterator[str]:
    EVENTS.append("open managed")
    yield "managed"
    EVENTS.append("close managed")


@asynccontextmanager
async def managed_async() -> AsyncIterator[str]:
    EVENTS.append("open managed_async")
    yield "managed_async"
    EVENTS.append("close managed_async")


FACTORIES = [plain, awaited, yielded, yielded_async, managed, managed_async]


def shop(url: str, **settings: Any) -> App:
    app = App(url, **settings)
    app.migrate()
    return app


@pytest.mark.parametrize("is_async", [True, False], ids=["loop", "thread"])
@pytest.mark.parametrize("scope", ["process", "run"])
@pytest.mark.parametrize("make", FACTORIES, ids=lambda make: make.__name__)
async def test_every_kind_of_factory_gives_every_kind_of_handler_its_object(
    store_url: str, make: Any, scope: str, is_async: bool
) -> None:
    app = shop(store_url)
    given = []
    found = Annotated[str, Resource(make, scope=scope)]

    async def on_loop(n: int, found: found = INJECTED) -> None:
        given.append((n, found))

    def in_thread(n: int, found: found = INJECTED) -> None:
        given.append((n, found))

    pay = app.task(name="pay")(on_loop if is_async else in_thread)
    pay.submit_many([{"n": n} for n in range(5)])
    await drain(app)
    assert sorted(given) == [(n, make.__name__) for n in range(5)]
    times = 1 if scope == "process" else 5
    begin = "make" if make in (plain, awaited) else "open"
    assert EVENTS.count(f"{begin} {make.__name__}") == times
    assert EVENTS.count(f"close {make.__name__}") == (times if begin == "open" else 0)
    app.close()


async def test_a_process_has_one_resource_for_all_runs_that_want_it_at_once(
    sqlite_url: str,
) -> None:
    app = shop(sqlite_url)
    ready, waiting = asyncio.Event(), 0
    clients = set()

    async def make() -> object:
        EVENTS.append("made")
        await ready.wait()
        return object()

    @app.task
    async def on_loop(client: Annotated[object, Resource(make)] = INJECTED) -> None:
        clients.add(client)

    @app.task
    def in_thread(client: Annotated[object, Resource(make)] = INJECTED) -> None:
        clients.add(client)

    class Counting(fairlead.Interceptor):
        @contextmanager
        def running(self, task: Any) -> Iterator[None]:
            nonlocal waiting
            waiting += 1
            if waiting == 20:
                loop.call_soon_threadsafe(ready.set)
            yield

    loop = asyncio.get_running_loop()
    app.interceptors = [Counting()]
    on_loop.submit_many([{}] * 10)
    in_thread.submit_many([{}] * 10)
    await drain(app, threads=10)
    assert (len(clients), EVENTS) == (1, ["made"])
    app.close()


@pytest.mark.parametrize("is_async", [True, False], ids=["loop", "thread"])
async def test_resources_close_in_reverse_order_also_those_that_others_need(
    sqlite_url: str, is_async: bool
) -> None:
    app = shop(sqlite_url)

    def engine() -> Client:
        return Client("engine")

    Engine = Annotated[Client, Resource(engine)]

    async def pool(engine: Engine) -> AsyncIterator[str]:
        EVENTS.append(f"open pool on {engine.name}")
        yield "pool"
        EVENTS.append("close pool")

    def session(engine: Engine, pool: Annotated[str, Resource(pool)]) -> Iterator[str]:
        EVENTS.append(f"open session on {engine.name} and {pool}")
        yield "session"
        EVENTS.append("close session")

    Session = Annotated[str, Resource(session, scope="run")]

    def cart(session: Session) -> Client:
        return Client(f"cart of {session}")

    Cart = Annotated[Client, Resource(cart, scope="run")]

    async def on_loop(session: Session, cart: Cart, n: int = 1) -> None:
        EVENTS.append(f"run {session} {cart.name}")

    def in_thread(session: Session, cart: Cart, n: int = 1) -> None:
        EVENTS.append(f"run {session} {cart.name}")

    app.task(name="pay")(on_loop if is_async else in_thread).submit(n=2)
    await drain(app)
    assert EVENTS == [
        "open engine",
        "open pool on engine",
        "open session on engine and pool",
        "open cart of session",
        "run session cart of session",
        "close cart of session None",
        "close session",
        "close pool",
        "close engine None",
    ]
    app.close()


@pytest.mark.parametrize("is_async", [True, False], ids=["loop", "thread"])
@pytest.mark.parametrize("scope", ["process", "run"])
async def test_a_resource_that_fails_is_named_and_made_anew_by_the_next_attempt(
    store_url: str, scope: str, is_async: bool
) -> None:
    app = shop(store_url)
    tries = []

    def make() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("no server")
        return "client"

    found = Annotated[str, Resource(make, scope=scope)]

    async def on_loop(found: found) -> None:
        EVENTS.append(found)

    def in_thread(found: found) -> None:
        EVENTS.append(found)

    pay = app.task(name="pay", retry=Fixed(seconds=0.01, max_attempts=5))(
        on_loop if is_async else in_thread
    )
    handle = pay.submit()
    await drain(app)
    assert (handle.state(), EVENTS) == (State.DONE, ["client"])
    attempts = sorted(app.management.attempts(handle.id), key=lambda each: each.attempt)
    assert [each.outcome for each in attempts] == ["retried", "retried", "done"]
    assert attempts[0].error_type == "fairlead.errors.ResourceFailed"
    assert attempts[0].error_text.startswith(
        "resource 'test_a_resource_that_fails_is_named_and_made_anew_by_the_next_attempt.<locals>"
        ".make' cannot be made: ConnectionError: no server"
    )
    assert 'raise ConnectionError("no server")' in attempts[0].error_text
    app.close()


@pytest.mark.parametrize("is_async", [True, False], ids=["loop", "thread"])
@pytest.mark.parametrize("make", [yielded, yielded_async, Client], ids=lambda make: make.__name__)
async def test_a_resource_of_a_run_sees_its_error_and_cannot_hide_it(
    sqlite_url: str, make: Any, is_async: bool
) -> None:
    app = shop(sqlite_url)

    class Hiding(Client):
        def __exit__(self, *error: object) -> bool:
            super().__exit__(*error)
            return True

    def hidden() -> Hiding:
        return Hiding("hiding")

    def fails(one: Any, two: Any) -> None:
        raise KeyError("lost")

    async def fails_async(one: Any, two: Any) -> None:
        fails(one, two)

    function: Any = fails_async if is_async else fails
    function.__annotations__ |= {
        "one": Annotated[Any, Resource(make, scope="run")],
        "two": Annotated[Any, Resource(hidden, scope="run")],
    }
    handle = app.task(name="fails", retry=fairlead.NoRetry())(function).submit()
    await drain(app)
    assert handle.state() == State.ERROR
    (attempt,) = app.management.attempts(handle.id)
    assert (attempt.error_type, attempt.outcome) == ("KeyError", "failed")
    assert EVENTS[-2] == "close hiding KeyError"
    assert EVENTS[-1] in ("close client KeyError", f"close {make.__name__}")
    app.close()


@pytest.mark.parametrize("is_async", [True, False], ids=["loop", "thread"])
async def test_a_resource_that_fails_to_close_fails_the_attempt_but_no_committed_task(
    sqlite_url: str, is_async: bool
) -> None:
    app = shop(sqlite_url)

    async def breaks() -> AsyncIterator[str]:
        yield "fine"
        raise OSError("cannot close")

    Breaks = Annotated[str, Resource(breaks, scope="run")]

    async def on_loop(found: Breaks) -> None: ...

    def in_thread(found: Breaks) -> None: ...

    async def commits_on_loop(connection: Any, found: Breaks) -> None: ...

    def commits_in_thread(connection: Any, found: Breaks) -> None: ...

    one = app.task(name="one", retry=fairlead.NoRetry())(on_loop if is_async else in_thread)
    two = app.task(name="two", transactional=True)(
        commits_on_loop if is_async else commits_in_thread
    )
    failing, committed = one.submit(), two.submit()
    await drain(app)
    assert (failing.state(), committed.state()) == (State.ERROR, State.DONE)
    (attempt,) = app.management.attempts(failing.id)
    assert "breaks' cannot be closed: OSError: cannot close" in attempt.error_text
    app.close()


async def test_a_run_that_times_out_leaves_the_making_of_a_process_resource_alone(
    sqlite_url: str,
) -> None:
    app = shop(sqlite_url)
    ready = asyncio.Event()

    async def slow() -> AsyncIterator[str]:
        EVENTS.append("begin")
        await ready.wait()
        yield "slow"
        EVENTS.append("close")

    @app.task(timeout=0.05, retry=Fixed(seconds=0.01, max_attempts=2))
    async def pay(found: Annotated[str, Resource(slow)]) -> None:
        EVENTS.append(found)

    @app.task
    async def free() -> None:
        ready.set()

    handle = pay.submit()
    async with running(app) as node:
        while not app.management.attempts(handle.id):
            await asyncio.sleep(0.01)
        free.submit()
        await settled(app, node)
    assert EVENTS == ["begin", "slow", "close"]
    assert handle.state() == State.DONE
    app.close()


async def test_a_resource_that_is_never_made_does_not_hold_up_the_end_of_a_worker(
    sqlite_url: str,
) -> None:
    app = shop(sqlite_url)
    begun = threading.Event()

    async def never() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    @app.task
    def in_thread(found: Annotated[str, Resource(never)]) -> None:
        EVENTS.append(found)

    in_thread.submit()
    async with running(app, drain=0.05):
        await asyncio.to_thread(begun.wait)
    assert EVENTS == []
    app.close()


async def test_a_transactional_handler_gets_its_resources_before_its_transaction(
    store_url: str,
) -> None:
    app = shop(store_url)

    def client() -> Client:
        assert fairlead.current_task().connection is None
        return Client()

    Given = Annotated[Client, Resource(client, scope="run")]

    @app.task(transactional=True, keep_result=True)
    async def on_loop(n: int, connection: Any, client: Given = INJECTED) -> str:
        return f"{client.name} {n}"

    @app.task(transactional=True, keep_result=True)
    def in_thread(n: int, connection: Any, client: Given = INJECTED) -> str:
        return f"{client.name} {n}"

    handles = [on_loop.submit(n=1), in_thread.submit(n=2)]
    await drain(app)
    assert [handle.result() for handle in handles] == ["client 1", "client 2"]
    app.close()


@pytest.mark.parametrize("is_transactional", [True, False])
async def test_arguments_may_have_any_name_beside_resources(
    sqlite_url: str, is_transactional: bool
) -> None:
    app = shop(sqlite_url)

    @app.task(transactional=is_transactional, keep_result=True)
    async def on_loop(
        self: int,
        execution: int,
        call: int,
        client: Annotated[Client, Resource(Client)],
        connection: Any = None,
    ) -> int:
        return self + execution + call

    @app.task(transactional=is_transactional, keep_result=True)
    def in_thread(
        self: int,
        execution: int,
        call: int,
        client: Annotated[Client, Resource(Client)],
        connection: Any = None,
    ) -> int:
        return self + execution + call

    given = {"self": 1, "execution": 2, "call": 3}
    handles = [task.submit_many([given])[0] for task in (on_loop, in_thread)]
    await drain(app)
    assert [handle.result() for handle in handles] == [6, 6]
    app.close()


# tests of the user --------------------------------------------------------------------------------


async def test_a_test_replaces_a_factory_also_one_that_another_factory_needs(
    sqlite_url: str,
) -> None:
    app = shop(sqlite_url)

    def engine() -> str:
        return "real"

    def session(engine: Annotated[str, Resource(engine)]) -> str:
        return f"session on {engine}"

    @app.task
    async def pay(session: Annotated[str, Resource(session, scope="run")]) -> None:
        EVENTS.append(session)

    with app.override(engine, lambda: "fake"):
        with app.override(engine, lambda: "other"):
            pay.submit()
            await drain(app)
        pay.submit()
        await drain(app)
    pay.submit()
    await drain(app)
    assert EVENTS == ["session on other", "session on fake", "session on real"]
    app.close()


async def test_a_mock_stands_for_itself(sqlite_url: str) -> None:
    app = shop(sqlite_url)

    @app.task
    async def pay(n: int, client: Annotated[Client, Resource(Client)] = INJECTED) -> None:
        client.send(n)

    fake = MagicMock()
    with app.override(Client, lambda: fake):
        pay.submit(n=3)
        await drain(app)
    fake.send.assert_called_once_with(3)
    app.close()


def test_an_override_of_what_no_task_uses_names_what_they_use() -> None:
    app = App("sqlite:///never.db")

    @app.task
    async def pay(client: Annotated[Client, Resource(Client)]) -> None: ...

    with pytest.raises(ConfigurationError, match="of this application: Client"):
        with app.override(plain, lambda: "fake"):
            pass
    with pytest.raises(ConfigurationError, match="use a function that returns the object"):
        with app.override(Client, "fake"):
            pass


# submitting ---------------------------------------------------------------------------------------


async def test_a_resource_is_no_argument_of_a_submit(sqlite_url: str) -> None:
    app = shop(sqlite_url)

    @app.task(keep_result=True)
    async def pay(
        partner: str, amount: int = 1, client: Annotated[Client, Resource(Client)] = INJECTED
    ) -> str:
        return f"{partner} {amount} {client.name}"

    assert pay.handler.arguments.names == ("partner", "amount")
    with pytest.raises(InvalidTask, match="client"):
        pay.submit(partner="acme", client="mine")
    with pytest.raises(InvalidTask, match="too many positional arguments"):
        pay.submit("acme", 3, "mine")
    handles = [pay.submit("acme", 3), pay.submit(partner="acme")]
    await drain(app)
    assert [handle.result() for handle in handles] == ["acme 3 client", "acme 1 client"]
    assert await pay("acme", 2, Client("mine")) == "acme 2 mine"
    with pytest.raises(ConfigurationError, match="give it as an argument"):
        await pay("acme")
    app.close()


async def test_a_periodic_task_takes_resources(sqlite_url: str) -> None:
    app = shop(sqlite_url)

    @app.periodic("0 0 1 1 *")
    async def yearly(client: Annotated[Client, Resource(Client)] = INJECTED) -> None:
        EVENTS.append("yearly")

    app.management.periodic.run("yearly")
    await drain(app)
    assert "yearly" in EVENTS
    app.close()


def needs_a_value(url: str) -> str:
    return url


def needs_itself(other: Annotated[str, Resource(plain)]) -> str:
    return other


needs_itself.__annotations__["other"] = Annotated[str, Resource(needs_itself)]


def needs_a_run(other: Annotated[str, Resource(plain, scope="run")]) -> str:
    return other


@pytest.mark.parametrize(
    ("mark", "error"),
    [
        (lambda: Resource(plain, scope="session"), "scope 'session': use 'process'.*or 'run'"),
        (lambda: Resource("plain"), "use a function that makes the resource"),
        (lambda: Resource, r"as in Annotated\[Client, Resource\(make_client\)\]"),
        (lambda: Resource(needs_a_value), "its parameter 'url' has no value"),
        (lambda: Resource(needs_itself), "in a circle: needs_itself -> needs_itself"),
        (lambda: Resource(needs_a_run), "needs 'plain', which lives for one run"),
    ],
)
def test_a_wrong_mark_is_refused_when_the_task_is_declared(mark: Any, error: str) -> None:
    app = App("sqlite:///never.db")

    async def pay(client: Any) -> None: ...

    with pytest.raises(ConfigurationError, match=error):
        pay.__annotations__["client"] = Annotated[str, mark()]
        app.task(pay)


def test_a_resource_cannot_be_positional_only() -> None:
    async def pay(client: Annotated[str, Resource(plain)], /) -> None: ...

    with pytest.raises(ConfigurationError, match="task 'pay': .*passed by name; remove the `/`"):
        App("sqlite:///never.db").task(pay)


# child processes ----------------------------------------------------------------------------------

CHILD = """
import asyncio, os, threading
from contextlib import asynccontextmanager
from typing import Annotated
import fairlead

def note(text):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{text} {'child' if os.getpid() != int(os.environ['PARENT']) else 'worker'}\\n")

@asynccontextmanager
async def lifespan(app):
    note("open lifespan")
    yield
    note("close lifespan")

app = fairlead.App(lifespan=lifespan)

async def pool():
    await asyncio.sleep(0)
    note("open pool")
    yield "pool"
    note("close pool")

def session(pool: Annotated[str, fairlead.Resource(pool)]):
    note("open session")
    yield f"session of {pool}"
    note("close session")

@app.task(executor="process", keep_result=True)
def pay(n: int, session: Annotated[str, fairlead.Resource(session, scope="run")] = fairlead.INJECTED) -> str:
    assert threading.current_thread() is threading.main_thread()
    return f"{session} {n}"
"""


async def test_a_child_process_has_its_own_lifespan_and_resources(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    notes = tmp_path / "notes"
    (tmp_path / "resource_app.py").write_text(CHILD)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, value in (
        ("FAIRLEAD_URL", sqlite_url),
        ("NOTES", str(notes)),
        ("PARENT", str(os.getpid())),
    ):
        monkeypatch.setenv(name, value)
    module = importlib.import_module("resource_app")
    try:
        module.app.migrate()
        handles = module.pay.submit_many([{"n": n} for n in range(2)])
        await drain(module.app, application="resource_app:app", processes=1)
        assert [handle.result() for handle in handles] == [f"session of pool {n}" for n in (0, 1)]
        assert notes.read_text().splitlines() == [
            "open lifespan worker",
            "open lifespan child",
            "open pool child",
            *["open session child", "close session child"] * 2,
            "close pool child",
            "close lifespan child",
            "close lifespan worker",
        ]
    finally:
        module.app.close()
        del sys.modules["resource_app"]
