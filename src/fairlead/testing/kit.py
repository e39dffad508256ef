"""The kit of one test: an application on a database of its own, drained on a real node."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar, cast

from fairlead.app import App
from fairlead.backends.sql.periodic import PeriodicStore
from fairlead.clock import MICROS, to_datetime
from fairlead.config import Settings
from fairlead.connector import Connector
from fairlead.declare.current import current_run
from fairlead.declare.handler import ExecutorKind, Handler
from fairlead.engine.node import Node
from fairlead.engine.periodic import PeriodicTasks
from fairlead.errors import ConfigurationError
from fairlead.model import NewTask, State
from fairlead.ports.observer import Observer
from fairlead.ports.statements import Steps
from fairlead.ports.task_records import TaskFilter
from fairlead.testing.clock import TravelClock
from fairlead.testing.database_lock import alone
from fairlead.testing.nodes import CHECK_EVERY, running
from fairlead.testing.recorder import Recorder
from fairlead.testing.store import prepare
from fairlead.testing.submitted import Named, SubmittedTask, Wanted, shown, submitted_task

T = TypeVar("T")

NODE = "fairlead-kit"
"""Name of the node that submits the slots of periodic tasks."""

MOST_READ = 1000
"""Maximum number of tasks of one state that a drain looks at."""


class HasApp(Protocol):
    """An application of Celery's names."""

    @property
    def fairlead(self) -> App:
        """The App of Fairlead."""

    @property
    def is_waking(self) -> bool:
        """Whether a thread is about to wake tasks that wait for others."""


class Kit:
    """An application under test; `open_kit` makes it."""

    def __init__(
        self,
        app: App,
        clock: TravelClock,
        recorder: Recorder,
        is_waking: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_waking`: whether a thread beside the node is about to make tasks due."""
        self.app = app
        self._is_waking = is_waking
        self.clock = clock
        self._recorder = recorder
        self._lock = threading.RLock()
        """Held by the thread that drains."""
        self._nodes: set[int] = set()
        """Ids of the threads in which this kit runs a node."""
        self._late: list[BaseException] = []
        """Drains of an inline block that did not end in time."""

    # running --------------------------------------------------------------------------------------

    def drain(self, timeout: float = 30.0, *, raises: bool = True, **settings: Any) -> None:
        """Run a node until no task is due, those included that tasks submit. Tasks and retries that
        are due later stay; see `travel`. Works beside a running event loop, on a loop of its own.

        Raises the failure of a task whose last run failed, with the traceback of its function, and
        an ExceptionGroup for several; with `raises=False`, failures stay with their tasks. A
        `fairlead.Retry` or `Snooze` is no failure while tries are left. Raises TimeoutError after
        `timeout` seconds, naming the tasks. `settings`: see `App.node`.
        """
        __tracebackhide__ = True
        with self._lock:
            late = self._in_thread(lambda: self._drained(timeout, settings))
            failures = self._recorder.take_failures()
        _raise([*(failures if raises else []), *late])

    async def drain_async(
        self, timeout: float = 30.0, *, raises: bool = True, **settings: Any
    ) -> None:
        """Drain as `drain` does, with handlers on the event loop of the caller, so that they share
        its connections and locks. Raises ConfigurationError on the loop of another library, such as
        Trio."""
        __tracebackhide__ = True
        if asyncio._get_running_loop() is None:
            raise ConfigurationError("drain_async: no event loop of asyncio runs here: use drain()")
        late = await self._drained(timeout, settings)
        failures = self._recorder.take_failures()
        _raise([*(failures if raises else []), *late])

    @contextmanager
    def inline(self, timeout: float = 30.0, *, raises: bool = True) -> Iterator[None]:
        """Drain after each submit of the block, before the submit returns; with `connection=`,
        after the commit. Tasks run as ever: from the store, on a node, in other threads.

        A submit never raises what a task raises: the end of the block raises all failures as
        `drain` does, unless `raises` is False. A commit on a plain connection is seen only in
        `app.transaction()`, or by `handle.trigger()`. Raises ConfigurationError inside another
        block.
        """
        connector = self.app.connector
        if connector.on_announced is not None:
            raise ConfigurationError("inline: an inline block is open already")

        connector.on_announced = lambda: self._drain_now(timeout)
        try:
            yield
        except BaseException as error:
            for failure in [*self._recorder.take_failures(), *self._take_late()]:
                error.add_note(f"meanwhile {type(failure).__name__}: {failure}")
            raise
        finally:
            connector.on_announced = None
        failures = self._recorder.take_failures()
        _raise([*(failures if raises else []), *self._take_late()])

    def _take_late(self) -> list[BaseException]:
        late, self._late = self._late, []
        return late

    # time -----------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The time of the application, aware, UTC: that of the machine, and all travels."""
        return to_datetime(self.clock.now())

    def travel(self, to: timedelta | datetime) -> None:
        """Move the clock of the application forward, by a timedelta or to an aware datetime. The
        next drain runs what is due by then: scheduled tasks, retries, and slots of periodic tasks
        by their `catch_up`. The clock of your own code stays. Raises ValueError for a way back."""
        with self._lock:
            self._in_thread(self._submit_slots)  # slots from now on are those of the travel
            self.clock.travel(to)

    # submits --------------------------------------------------------------------------------------

    def submitted(self, task: Named, /, **arguments: Any) -> list[SubmittedTask]:
        """Return the tasks that this process has submitted since the beginning of the test, in a
        committed transaction, with these arguments and with the options of the task; in the order
        of their submits, also those that have run. Raises TypeError for an argument that the task
        does not have."""
        wanted = Wanted.of(task, self.app.handlers, arguments)
        return [each for each in self._written(wanted.name)[0] if wanted.fits(each)]

    def assert_submitted(
        self, task: Named, count: int | None = None, /, **arguments: Any
    ) -> list[SubmittedTask]:
        """Raise AssertionError, with a list of what was submitted, unless a task with these
        arguments was submitted; return those that were. `count`: exactly so many. Options are given
        to the task: `assert_submitted(pay.options(priority=3), partner="acme")`; those of a plain
        submit are not compared."""
        __tracebackhide__ = True
        found = self.submitted(task, **arguments)
        if len(found) != count if count is not None else not found:
            number = "no task" if not found else f"{len(found)} tasks"
            expected = "" if count is None else f", not {count}"
            self._refuse(f"{number} {Wanted.of(task, self.app.handlers, arguments)}{expected}")
        return found

    def assert_not_submitted(self, task: Named, /, **arguments: Any) -> None:
        """Raise AssertionError if a task with these arguments was submitted."""
        __tracebackhide__ = True
        if found := self.submitted(task, **arguments):
            wanted = Wanted.of(task, self.app.handlers, arguments)
            self._refuse(f"{len(found)} of {wanted}")

    def _refuse(self, what: str) -> None:
        __tracebackhide__ = True
        committed, others = self._written(None)
        listed = shown(committed, others) or "  nothing"
        raise AssertionError(f"{what} submitted; submitted were:\n{listed}")

    def _written(self, name: str | None) -> tuple[list[SubmittedTask], list[SubmittedTask]]:
        """Return the tasks that are or were in the store, and those that never were."""
        handlers = self.app.handlers
        committed: list[SubmittedTask] = []
        others: list[SubmittedTask] = []
        for task in [*self._recorder.written]:
            if name in (None, task.name) and task.name in handlers:
                found = committed if self._is_in_store(task) else others
                found.append(submitted_task(task, handlers[task.name]))
        return committed, others

    def _is_in_store(self, task: NewTask) -> bool:
        store = self.app.sql_store
        if task.id in self._recorder.committed:
            return True
        if store.database.read_now(store.task(task.id)) is not None:
            self._recorder.committed.add(task.id)
            return True
        schedule = self.app.connections.schedule  # of the tasks of ordered queues
        return schedule is not None and schedule.find_now(task.id) is not None

    # the node -------------------------------------------------------------------------------------

    def _drain_now(self, timeout: float) -> None:
        """Drain after a submit, but not after one of a task or of the node itself."""
        if current_run() is not None or threading.get_ident() in self._nodes:
            return
        with self._lock:
            self._late += self._in_thread(lambda: self._drained(timeout, {}))

    async def _drained(self, timeout: float, settings: Mapping[str, Any]) -> list[TimeoutError]:
        """Run a node until no task is due. Return an error that names the tasks if it takes too
        long."""
        # Adapters of its own for each node, as in another process, because those of the application
        # serve its submits meanwhile, perhaps in another event loop.
        worker = copy.copy(self.app)
        worker.connector = self.app.connector.another()
        worker.handlers = {name: _in_process(each) for name, each in worker.handlers.items()}
        self._nodes.add(threading.get_ident())
        try:
            await self._submit_slots()
            now = self.clock.now()  # what comes due while a slow machine drains is for a next drain
            async with running(worker, **{"drain": 0.0, **settings}) as node:
                try:
                    async with asyncio.timeout(timeout):
                        while await self._is_busy(node, now):  # noqa: ASYNC110
                            await asyncio.sleep(CHECK_EVERY)
                except TimeoutError:
                    return [self._late_error(node, timeout)]
            return []
        finally:
            self._nodes.discard(threading.get_ident())
            await worker.connections.close_async()
            worker.close()
            await self.app.connections.store.database.close_loop()

    async def _is_busy(self, node: Node, now: int) -> bool:
        """Return whether a task runs, or is left that may run and was due by `now`."""
        if node.in_flight or self._is_waking():
            return True
        store = self.app.sql_store
        moves = self._recorder.moves
        # In the order in which tasks change their states meanwhile, so that none is missed.
        next_due = await self.app.store.next_due()
        if next_due is not None and next_due <= now:
            return True
        ready = await store.database.read(store.tasks(TaskFilter(State.SUBMITTED), MOST_READ))
        held = await self._held_keys() if ready else set()
        if any((each.queue, each.ordering_key) not in held for each in ready):
            return True
        if await store.database.read(store.tasks(TaskFilter(State.PROCESSING), 1)):
            return True
        if await node.parts.ordered.has_unfinished():
            return True
        return bool(node.in_flight) or moves != self._recorder.moves

    async def _held_keys(self) -> set[tuple[str, str | None]]:
        """Return (queue, ordering key) of tasks whose retry, or a person, the later tasks of their
        key wait for."""
        held: set[tuple[str, str | None]] = set()
        store, handlers = self.app.sql_store, self.app.handlers
        for state in (State.ERROR, State.WAITING):
            for each in await store.database.read(store.tasks(TaskFilter(state), MOST_READ)):
                handler = handlers.get(each.name)
                is_skipped = state == State.ERROR and handler is not None and handler.skips_failed
                if each.ordering_key is not None and each.attempt and not is_skipped:
                    held.add((each.queue, each.ordering_key))
        return held

    def _late_error(self, node: Node, timeout: float) -> TimeoutError:
        now, lines = self.clock.now(), []
        for task_id, run in node.parts.context.in_flight.items():
            lines.append(f"  {run.trigger.name}, id {task_id}, attempt {run.claimed.attempt}: runs")
            if run.started_at is not None:
                lines[-1] += f" since {(now - run.started_at) / MICROS:.1f} s"
        for task in self.app.management.find(state=State.SUBMITTED, limit=10):
            lines.append(f"  {task.name}, id {task.id}: waits in queue {task.queue!r}")
            if task.name not in self.app.handlers:
                lines[-1] += ", and the application has no such task"
        listed = "\n".join(lines)
        return TimeoutError(f"tasks have not ended after {timeout} s:\n{listed}")

    async def _submit_slots(self) -> None:
        """Register the periodic tasks, and submit their due slots by the clock of the test."""
        app = self.app
        if not app.periodics:
            return
        store = app.sql_store
        clocked = cast(PeriodicStore, _OwnTime(PeriodicStore(store)))
        for group, _ in app.submitter.ordered.groups(app.periodics):
            await PeriodicTasks(
                NODE, group, store.database, clocked, app.submitter, self.clock
            ).round()

    def _in_thread(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine on a loop in a new thread, because this thread may have a loop, and
        asyncio would take away the current one. Return its result, or raise its error."""
        __tracebackhide__ = True
        done: Future[T] = Future()
        running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

        async def closing() -> T:
            task = asyncio.current_task()
            assert task is not None
            running.append((asyncio.get_running_loop(), task))
            try:
                return await work()
            finally:
                await self.app.connections.store.database.close_loop()

        def run() -> None:
            try:
                done.set_result(asyncio.run(closing()))
            except BaseException as error:
                done.set_exception(error)

        thread = threading.Thread(target=run, name="fairlead-kit", daemon=True)
        thread.start()
        try:
            return done.result()
        finally:
            if not done.done():  # by Ctrl-C: the node must not outlive the test
                for loop, task in running:
                    with suppress(RuntimeError):  # it has ended meanwhile
                        loop.call_soon_threadsafe(task.cancel)
                thread.join()


class _OwnTime:
    """A store of periodic tasks by the clock of the test, where a server would have its own."""

    def __init__(self, store: PeriodicStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def clock(self, now: int) -> Steps[int]:
        return now
        yield


@contextmanager
def open_kit(app: App | HasApp, url: str | None = None) -> Iterator[Kit]:
    """Return a context manager that gives the kit of one test. During the block, the application
    uses the database at `url` for everything, without a lake and its other servers, and a
    `TravelClock`; then what it had before.

    `url`: a database of SQLite or PostgreSQL; by default that of the application. Its tables are
    made, and it is empty at the beginning. Raises ConfigurationError, before anything is deleted,
    for a database with tasks or a history of others and no word `test` in its name, and for one
    that a test of another process uses now, NotSupported for another store.
    """
    celery = None if isinstance(app, App) else app
    app = app if isinstance(app, App) else app.fairlead
    connector = app.connector
    if type(connector) is not Connector:
        raise ConfigurationError(
            "open_kit: the database of this application is Django's: use drain() or run_tasks() of"
            " fairlead.contrib.django.testing"
        )
    # Neither the channel, nor any other server of the application.
    settings = Settings(connector.settings.url if url is None else url)
    recorder, clock = Recorder(app), TravelClock()
    before = app.clock, app.observer, app.interceptors, app.lake
    app.clock, app.observer = clock, cast(Observer, recorder)
    app.interceptors, app.lake = (recorder, *app.interceptors), None
    try:
        with alone(settings.url), connector.leading_to(settings):
            prepare(connector)
            kit = Kit(app, clock, recorder, lambda: celery is not None and celery.is_waking)
            kit._in_thread(kit._submit_slots)
            yield kit
    finally:
        app.clock, app.observer, app.interceptors, app.lake = before


def _in_process(handler: Handler) -> Handler:
    """Return the handler for a thread instead of a child process, whose application would lead to
    the database of production."""
    if handler.executor_kind is not ExecutorKind.PROCESS:
        return handler
    handler = copy.copy(handler)
    handler.executor_kind = ExecutorKind.THREAD
    return handler


def _raise(failures: Sequence[BaseException]) -> None:
    """Raise the only failure as it is, or several as one group."""
    __tracebackhide__ = True
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} tasks failed", failures)
