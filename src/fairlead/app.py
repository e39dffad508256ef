"""The application: declares queues and tasks, and submits tasks."""

from __future__ import annotations

import inspect
import os
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import replace
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Literal,
    ParamSpec,
    TypeVar,
    cast,
    overload,
)

from fairlead.clock import SYSTEM_CLOCK, Clock, StoreClock
from fairlead.config import CHECKPOINT_LIMIT, PAYLOAD_LIMIT, RESULT_LIMIT, catalog_of, lake_of
from fairlead.connections import Connections
from fairlead.connector import Connector
from fairlead.core import values
from fairlead.core.limits.cluster_limits import AnyLimit
from fairlead.core.payload import MOST_BYTES
from fairlead.core.policies.processing import Processing, ProcessingPolicy
from fairlead.core.policies.retry import DEFAULT_RETRY, RetryPolicy
from fairlead.declare.declarations import Declarations
from fairlead.declare.handle import TaskHandle
from fairlead.declare.handler import Handler, Kept, RunInterceptor
from fairlead.declare.on_incident import INCIDENT_TIMEOUT, OnIncident, checked_timeout
from fairlead.declare.queue import OrderedQueue, Queue
from fairlead.declare.task import Draft, HandlerOptions, PeriodicDecorator, Task, TransactionalTask
from fairlead.errors import (
    ConfigurationError,
    InvalidTask,
    SchemaMismatch,
    StoreRefused,
    StoreUnavailable,
    UnknownQueue,
)
from fairlead.ports.notifier import Notifier
from fairlead.ports.observer import Observer, SafeObserver, Silent
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.task_store import TaskStore
from fairlead.ports.trigger_channel import TriggerChannel
from fairlead.submit.context import SubmitContext
from fairlead.submit.submission import Submitter
from fairlead.submit.transaction import Transaction

if TYPE_CHECKING:
    from typing import Unpack

    from fairlead.engine.node import Node
    from fairlead.operate.context import OperateContext
    from fairlead.operate.tasks import Management

AppLifespan = Callable[["App"], AbstractAsyncContextManager[Any] | AsyncIterator[Any]]
"""Function that makes the context manager of one worker process, or an `async def` with one
`yield`."""

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_QUEUE = "default"
MOST_URL_BYTES = 16_384
OBSERVED = ("submitted", "claimed", "finished", "gauges", "counted")
"""Methods of an observer that every node calls."""


class App:
    """Declares queues and tasks, and submits tasks. Opens nothing before the first use.

    `url`: the store of tasks, `sqlite:///tasks.db` or `postgresql://...`; by default $FAIRLEAD_URL,
    [tool.fairlead] or fairlead.toml. An application with ordered queues only needs none if it has
    `log`, `schedule` and `coordinator`. `channel`, `coordinator`, `backlog`: URLs as well; the
    database of the tasks by default. `log`, `schedule`: URLs for ordered queues, such as
    kafka://host:9092 and cassandra://host:9042/keyspace; the same default. `lake`: the folder or
    URL to which workers move the history of attempts, as Iceberg tables; by default $FAIRLEAD_LAKE
    or the same files. `lake=""` means no lake, whatever is configured. `catalog`: URL of the lake's
    catalog; by default $FAIRLEAD_CATALOG or the same files. `payload_limit`: maximum bytes of JSON
    for the arguments of one task; `result_limit`, `checkpoint_limit`: the same for a result that is
    kept and for a checkpoint.
    `keep_log`: default of the option of `task`.
    `on_incident`: called with each `Incident`, at least once, in a thread; it may be an `async
    def`. A call that raises or takes more than `incident_timeout` seconds is repeated later.
    `lifespan`: an `async def` with one `yield` that each worker process enters before its first
    task, with the App as its argument, and leaves after its last one; handlers find what it yields
    in `state`. Raises ConfigurationError for bad values.
    """

    connector_class: ClassVar[type[Connector]] = Connector

    # More than seven parameters: the public surface, by keyword; most applications use few of them.
    def __init__(
        self,
        url: str | None = None,
        *,
        channel: str | None = None,
        coordinator: str | None = None,
        backlog: str | None = None,
        log: str | None = None,
        schedule: str | None = None,
        lake: str | None = None,
        catalog: str | None = None,
        name: str = "fairlead",
        payload_limit: int = PAYLOAD_LIMIT,
        result_limit: int = RESULT_LIMIT,
        checkpoint_limit: int = CHECKPOINT_LIMIT,
        keep_log: bool = False,
        interceptors: Sequence[RunInterceptor] = (),
        observer: Observer | None = None,
        on_incident: OnIncident | None = None,
        incident_timeout: float = INCIDENT_TIMEOUT,
        lifespan: AppLifespan | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.name = values.text("name", name)
        self.payload_limit = values.whole("payload_limit", payload_limit, 1, MOST_BYTES)
        self._kept = Kept(
            log=keep_log,
            result_limit=values.whole("result_limit", result_limit, 1),
            checkpoint_limit=values.whole("checkpoint_limit", checkpoint_limit, 1),
        )
        self.interceptors: Sequence[RunInterceptor] = _checked(interceptors)
        if on_incident is not None and not callable(on_incident):
            raise ConfigurationError(f"on_incident {values.brief(on_incident)}: use a function")
        self.on_incident = on_incident
        self.incident_timeout = checked_timeout(incident_timeout)
        self._lifespan = None if lifespan is None else _as_lifespan(lifespan)
        self._states: list[Any] = []
        """States of the open lifespan and of tests, the last one last."""
        self.clock = values.methods("clock", clock, "now", "monotonic", "sleep")
        self._declared = Declarations()
        self.queues = self._declared.queues
        self.handlers = self._declared.handlers
        self.periodics = self._declared.periodics
        if lake is not None:
            values.text("lake", lake, MOST_URL_BYTES, may_be_empty=True)
        if catalog is not None:
            values.text("catalog", catalog, MOST_URL_BYTES)
        self.lake = lake_of(lake)
        """Folder or URL of the lake to which workers export the history; None without one."""
        self.catalog = catalog_of(catalog)
        """URL of the lake's catalog; None for the one in the folder of the lake."""
        if self.lake is not None:
            from fairlead.engine.poller import check_lake

            check_lake()
        urls = {
            "url": url,
            "channel": channel,
            "coordinator": coordinator,
            "backlog": backlog,
            "log": log,
            "schedule": schedule,
        }
        for what, given in urls.items():
            if given is not None:
                values.text(what, given, MOST_URL_BYTES, may_be_empty=True)
        if observer is not None:
            values.methods("observer", observer, *OBSERVED)
        self.observer: Observer = observer or Silent()
        self._safe_observer = cast(Observer, SafeObserver(lambda: self.observer))
        self.connector = self.connector_class(
            urls,
            clock=lambda: self.clock,
            declared=self._declared,
            counted=self._safe_observer.counted,
        )
        self.submitter = Submitter(
            SubmitContext(
                connector=self.connector,
                declared=self._declared,
                hooks=self,
                observer=self._safe_observer,
            )
        )

    # declaring ------------------------------------------------------------------------------------

    # More than seven parameters here and in `task`: the public surface, by keyword.
    def queue(
        self,
        name: str,
        *,
        order: str = "fair",
        partitions: int | None = None,
        concurrency: AnyLimit | None = None,
        kind: str = "tasks",
        grace: float = 10.0,
        look_ahead: float = 300.0,
        cost: str = "tasks",
    ) -> Queue:
        """Declare a queue; a queue that is never declared has the defaults. Raises
        ConfigurationError for bad values.

        `partitions`: 1 by default, 120 for an ordered queue. `kind="ordered"`: a queue ordered by
        ordering key and time, with a log of its own. `grace`: seconds that its tasks may be late
        when submitted. `look_ahead`: seconds before their time at which its tasks are read into
        memory. `cost="runtime"`: fairness keys share the run time, not the number of runs.
        """
        values.one_of(f"queue {name!r}: kind", kind, "tasks", "ordered")
        given = {} if partitions is None else {"partitions": partitions}
        if kind == "ordered":
            ordered = OrderedQueue(
                name, order, concurrency, cost, **given, grace=grace, look_ahead=look_ahead
            )
            self._declared.add_ordered(ordered)
            return ordered
        queue = Queue(name, order, concurrency, cost, **given)
        self._declared.add_queue(queue)
        return queue

    @overload
    def task(self, function: Callable[P, R]) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        transactional: Literal[True],
        queue: str = ...,
        name: str | None = ...,
        retry: RetryPolicy = ...,
        processing: ProcessingPolicy | None = ...,
        timeout: float | None = ...,
        concurrency: AnyLimit | None = ...,
        keep_result: bool = ...,
        keep_log: bool | None = ...,
        executor: str | None = ...,
        on_failure: str = ...,
    ) -> Callable[[Callable[Concatenate[Any, P], R]], TransactionalTask[P, R]]: ...
    @overload
    def task(
        self,
        *,
        queue: str = ...,
        name: str | None = ...,
        retry: RetryPolicy = ...,
        processing: ProcessingPolicy | None = ...,
        timeout: float | None = ...,
        concurrency: AnyLimit | None = ...,
        transactional: Literal[False] = ...,
        keep_result: bool = ...,
        keep_log: bool | None = ...,
        executor: str | None = ...,
        on_failure: str = ...,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(
        self,
        function: Callable[P, R] | None = None,
        *,
        queue: str = DEFAULT_QUEUE,
        name: str | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
        processing: ProcessingPolicy | None = None,
        timeout: float | None = None,
        concurrency: AnyLimit | None = None,
        transactional: bool = False,
        keep_result: bool = False,
        keep_log: bool | None = None,
        executor: str | None = None,
        on_failure: str = "hold",
    ) -> Any:
        """Register a sync or async function as a task. The task has the function's name unless
        `name` is given.

        `timeout`: maximum seconds of one run; short for `processing=Processing(timeout=...)`.
        `transactional`: the function gets `connection`; its writes there, the tasks it submits and
        its completion commit in one transaction. `keep_result`: `handle.result()` returns the
        return value. `keep_log`: the last log lines of each run, of any logger, are kept with its
        attempt. `on_failure`: "hold" keeps the later tasks of the ordering key waiting once
        the task's tries are used up, until a person retries, fails or cancels it; "skip" lets them
        run. While the task has tries left, they wait in either case. Raises ConfigurationError for
        a name that is taken or a function whose arguments cannot be encoded as JSON.
        """
        if processing is not None and timeout is not None:
            raise ConfigurationError("give timeout= or processing=, not both")

        def register(function: Callable[P, R]) -> Task[P, R]:
            handler = Handler(
                function=function,
                name=getattr(function, "__name__", "") if name is None else name,
                queue=queue,
                retry=retry,
                processing=processing or Processing(timeout=timeout),
                concurrency=concurrency,
                transactional=transactional,
                kept=replace(
                    self._kept,
                    result=keep_result,
                    log=self._kept.log if keep_log is None else keep_log,
                    is_log_asked=keep_log is True,
                ),
                executor=executor,
                on_failure=on_failure,
            )
            self._declared.add_handler(handler)
            return (TransactionalTask if transactional else Task)(self, handler, function)

        return register if function is None else register(function)

    def periodic(
        self,
        cron: str,
        *,
        timezone: str = "UTC",
        catch_up: str = "last",
        overlap: str = "allow",
        ordering_key: str | None = None,
        **options: Unpack[HandlerOptions],
    ) -> PeriodicDecorator:
        """Submit a task at each time of a cron expression, once in the whole cluster.

        Use it above `@app.task`, or on a plain function, which it makes a task. The function takes
        no arguments, or one named `slot`: the aware datetime it runs for. `catch_up`: the slots to
        run that no worker submitted in time: "last" runs the latest one, "all" runs each of them,
        at most the latest 1,000, and "none" skips those more than a minute late. Slots from before
        the first worker with this declaration never run. `overlap`: with "skip", no slot is
        submitted while a task of an earlier one waits or runs. `ordering_key`: that of its tasks;
        in an ordered queue, the slots of a task have one of their own by default. Raises
        ConfigurationError for a bad expression, timezone, policy or ordering key.
        """

        def register(target: Any) -> Any:
            given: Any = options
            task = target if isinstance(target, Task) else self.task(**given)(target)
            self._declared.add_periodic(
                task.handler, cron, timezone, catch_up, ordering_key, overlap
            )
            return task

        return register

    # submitting -----------------------------------------------------------------------------------

    def submit_many(self, drafts: Sequence[Draft]) -> list[TaskHandle]:
        """Submit drafts of any tasks in one transaction: the caller's if they carry a
        connection."""
        try:
            return self.submitter.submit(drafts)
        except SchemaMismatch as error:
            raise error.with_traceback(None) from None  # it says all; our frames add nothing

    async def submit_many_async(self, drafts: Sequence[Draft]) -> list[TaskHandle]:
        """Submit drafts from asynchronous code; otherwise as `submit_many`."""
        try:
            return await self.submitter.submit_async(drafts)
        except SchemaMismatch as error:
            raise error.with_traceback(None) from None

    def transaction(self, connection: Any) -> Transaction:
        """Return a context manager, `with` or `async with`, that begins and commits a transaction
        on a plain connection and notifies the nodes after the commit, never after a rollback.
        Submits inside use `connection=` as usual."""
        return self.submitter.transaction(connection)

    def handle(self, task_id: str | uuid.UUID) -> TaskHandle:
        """Return a handle of a submitted task by its id, which another process may have kept. No
        request is sent yet: the methods of the handle raise UnknownTask if there is no such task.
        Raises InvalidTask for an id that no task can have."""
        if isinstance(task_id, uuid.UUID):
            task_id = str(task_id)
        values.text("id", task_id, error=InvalidTask)
        return TaskHandle(self.connector, task_id, False, True, _handlers=self.handlers)

    # where tasks live -----------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """URL of the task store, or of the schedule if there is no task store. Raises
        ConfigurationError if none is set."""
        return self.connector.settings.url

    @property
    def connections(self) -> Connections:
        """The adapters, made at first use, the schema not yet checked."""
        return self.connector.connections

    @property
    def store(self) -> TaskStore:
        """The task store, its schema checked. Raises SchemaMismatch, StoreUnavailable."""
        return self.connector.store

    @property
    def sql_store(self) -> SqlStore:
        """The task store as a store in a SQL database. Raises NotSupported if tasks do not live in
        one."""
        return self.connector.sql_store

    @property
    def channel(self) -> TriggerChannel:
        """The trigger channel."""
        return self.connector.channel

    @property
    def notifier(self) -> Notifier:
        """The notifier, which carries notifications to other processes."""
        return self.connector.notifier

    @property
    def management(self) -> Management:
        """Commands of operators, which show tasks and change them."""
        from fairlead.operate.tasks import Management

        return Management(self.operate_context)

    @property
    def operate_context(self) -> OperateContext:
        """The parts of this application that commands of operators use."""
        from fairlead.operate.context import OperateContext

        return OperateContext(
            connector=self.connector,
            queues=self.queues,
            ordered_queues=self._declared.ordered,
            handlers=self.handlers,
            periodics=self.periodics,
            submitter=self.submitter,
            clock=self.clock,
        )

    def migrate(self) -> list[str]:
        """Bring the schema up to date, in the backlog store and the schedule too; return the names
        of the migrations applied."""
        return self.connector.migrate()

    def close(self) -> None:
        """Close all connections. The application may be used again."""
        self.connector.close()

    # working --------------------------------------------------------------------------------------

    @property
    def lifespan(self) -> Callable[[], AbstractAsyncContextManager[Any]] | None:
        """Function that makes the context manager of one worker process; None without one."""
        return None if self._lifespan is None else self._open_state

    @property
    def state(self) -> Any:
        """The object that the lifespan has yielded in this worker process. Raises
        ConfigurationError where no lifespan is open."""
        if self._states:
            return self._states[-1]
        raise ConfigurationError(
            "app.state is what the lifespan of the App yields: read it in a task that a worker"
            " runs, or in a test inside of `with app.override_state(...)`"
        )

    @contextmanager
    def override_state(self, state: Any) -> Iterator[None]:
        """Use `state` in this process in place of the lifespan, which is not opened, for tests:
        `with app.override_state(FakePool()):`."""
        before, self._lifespan = self._lifespan, lambda app: nullcontext(state)
        try:
            with self._holding(state):
                yield
        finally:
            self._lifespan = before

    @asynccontextmanager
    async def _open_state(self) -> AsyncIterator[None]:
        assert self._lifespan is not None
        async with self._lifespan(self) as state:
            with self._holding(state):
                yield

    @contextmanager
    def _holding(self, state: Any) -> Iterator[None]:
        self._states.append(state)
        try:
            yield
        finally:
            self._states.pop()

    def node(
        self, *, queues: Iterable[str] | None = None, identity: str | None = None, **settings: Any
    ) -> Node:
        """Return a worker node of this application; run it in an event loop with
        `await app.node().run()`.

        `queues`: names of the queues it serves (all by default). `identity`: a name kept over
        restarts. After a stop, other nodes leave its partitions free for `restart_seconds`, so that
        a quick restart moves none. Further settings: see `fairlead.engine.settings.NodeSettings`.
        Raises UnknownQueue for a queue that is not declared, NotSupported if the store
        cannot do what a task declares, ConfigurationError for bad values.
        """
        from fairlead.backends.sql.periodic import PeriodicStore
        from fairlead.engine.context import NodePorts, Served
        from fairlead.engine.membership import name_of
        from fairlead.engine.node import Node
        from fairlead.engine.periodic import PeriodicTasks
        from fairlead.engine.poller import PollerContext, registered
        from fairlead.engine.settings import NodeSettings

        names = list(self.queues if queues is None else values.many("queues", queues))
        for name in names:
            if values.name("queue", name) not in self.queues:
                raise UnknownQueue(
                    f"no queue named {values.brief(name)}; this application has"
                    f" {', '.join(sorted(self.queues))}"
                )
        if identity is not None:
            settings["name"] = name_of(identity)
        settings.setdefault("name", f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
        connections = self.connections
        store = connections.tasks
        if connections.is_alone:  # the next worker finds the tasks of this one by its name
            settings["name"] = "alone"
        handlers = [handler for handler in self.handlers.values() if handler.queue in names]
        # Refuse what the store does not support before any task runs.
        ordered = [self._declared.ordered[name] for name in names if name in self._declared.ordered]
        if store is None and (others := set(names) - self._declared.ordered.keys()):
            raise ConfigurationError(
                f"queue {min(others)!r} is not ordered, and there is no SQL database for it: name"
                " one in the url of the App, or in FAIRLEAD_URL; or declare the queue with"
                " kind='ordered'"
            )
        needs_sql = store is not None and any(
            each.transactional or each.kept.result or each.kept.log for each in handlers
        )
        if self.on_incident is not None:
            _ = connections.shared_cluster  # raises NotSupported
        if needs_sql or self.periodics:
            _ = connections.sql_store  # raises NotSupported

        def check_store() -> None:
            _ = self.connector.cluster
            self.submitter.ordered.check(names, self.periodics)

        unchecked = None
        try:
            check_store()
        except StoreRefused:
            raise
        except StoreUnavailable:  # the node waits for it
            unchecked = check_store
        log, schedule = connections.for_ordered() if ordered else (None, None)
        node_settings = NodeSettings(**settings)
        # A clock that the application gives, such as that of a test which travels, is right.
        clock = StoreClock() if self.clock is SYSTEM_CLOCK else self.clock
        context = PollerContext(
            cluster=connections.cluster,
            clock=self.clock,
            intervals=node_settings.intervals,
            announce=connections.channel.announce,
        )
        pollers = registered(context, self.lake, self.catalog)
        periodic = [
            PeriodicTasks(
                node_settings.name,
                group,
                connections.sql_store.database,
                PeriodicStore(connections.sql_store),
                self.submitter,
                self.clock,
                patience,
            )
            for group, patience in self.submitter.ordered.groups(self.periodics)
        ]
        served = Served(
            queues=[self.queues[name] for name in names],
            ordered=ordered,
            handlers=self.handlers,
            interceptors=self.interceptors,
            pollers=pollers,
            periodic=periodic,
            check_store=unchecked,
            serves_without_store=bool(ordered) and self.connector.serves_without_store,
            on_incident=self.on_incident,
            incident_timeout=self.incident_timeout,
            lifespan=self.lifespan,
        )
        ports = NodePorts(
            cluster=connections.cluster,
            backlog=connections.backlog,
            channel=connections.channel,
            coordinator=connections.coordinator,
            presence=connections.presence,
            log=log,
            schedule=schedule,
        )
        return Node(node_settings, served, ports, clock, self._safe_observer)


def _as_lifespan(lifespan: AppLifespan) -> Callable[[App], AbstractAsyncContextManager[Any]]:
    """Return a function that makes a context manager, also for a plain generator function. Raises
    ConfigurationError for other objects."""
    if inspect.isasyncgenfunction(lifespan):
        return asynccontextmanager(lifespan)
    if not callable(lifespan) or inspect.iscoroutinefunction(lifespan):
        raise ConfigurationError(
            f"lifespan {values.brief(lifespan)}: use an `async def` with one `yield`, which takes"
            " the App"
        )
    made: Callable[[App], AbstractAsyncContextManager[Any]] = lifespan  # type: ignore[assignment]
    return made


def _checked(interceptors: object) -> tuple[RunInterceptor, ...]:
    """Return the interceptors of an application. Raises ConfigurationError for other objects."""
    found = tuple(values.many("interceptors", interceptors))
    for each in found:
        methods = (getattr(each, name, None) for name in ("submitting", "submission", "run"))
        if isinstance(each, type) or not any(map(callable, methods)):
            raise ConfigurationError(f"interceptor {values.brief(each)}: use an Interceptor")
    return found
