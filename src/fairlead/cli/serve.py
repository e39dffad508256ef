"""The processes behind `fairlead worker`: one node alone, a supervisor, or one of its workers."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from fairlead.app import App
from fairlead.cli.application import load
from fairlead.cli.logs import name_node
from fairlead.cli.output import bug_in, expected, say_error
from fairlead.cli.worker_options import WorkerOptions
from fairlead.engine.executors.handler_tasks import apart_from_handlers, guard_loop
from fairlead.engine.node import Node
from fairlead.errors import ConfigurationError, FairleadError, StoreUnavailable
from fairlead.supervisor.fleet import KILL_GRACE, Fleet
from fairlead.supervisor.health import LIVE, READY, NodeHealth, health_routes
from fairlead.supervisor.http import Routes, StatusServer, is_loopback
from fairlead.supervisor.link import WorkerEnd, WorkerReport
from fairlead.supervisor.processes import ignore_signals_of_terminal, spawn
from fairlead.supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry  # of an extra

log = logging.getLogger("fairlead.worker")

END_SECONDS = 5.0
"""Seconds after the end of its node until a process ends, whatever its handlers left running."""

METRICS_TOKEN = "FAIRLEAD_METRICS_TOKEN"  # noqa: S105 - the name of the variable
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,}")

COLLECT_AFTER = 10_000
"""Least number of new objects after which a worker looks for unreachable ones: the triggers of a
backlog stay in memory for seconds, and each look passes over all that came since the last."""

_CHECK_EVERY = 0.25  # seconds between two looks for unfinished tasks, with --until-empty


def serve(options: WorkerOptions) -> int:
    """Run the worker or the workers; return the exit code. Raise FairleadError."""
    link = WorkerEnd.inherited()
    if link is not None:
        ignore_signals_of_terminal()
        return _serve_child(options, link)
    workers = options.number_of_workers()
    return _serve_alone(options) if workers is None else _supervise(workers, options)


def _serve_alone(options: WorkerOptions) -> int:
    app = load(options.application)
    registry = _count_metrics(app, options)
    node = _node(app, options, options.name)
    health = NodeHealth(node, options.start_timeout)
    if registry is not None and options.metrics_port is not None:
        from fairlead.supervisor.exposition import metrics_routes

        routes = health_routes(health, metrics_routes(registry))
        _listen(options, routes).start()
    _log_start(app, node, options)
    _collect_less()
    asyncio.run(_apart(_run(node, options.until_empty, health)))
    app.close()
    return 0


def _collect_less() -> None:
    """Let the garbage collector look less often, and not at what the start has made."""
    gc.collect()
    gc.freeze()
    after, *older = gc.get_threshold()
    if 0 < after < COLLECT_AFTER:  # 0: the application has turned it off
        gc.set_threshold(COLLECT_AFTER, *older)


def _node(app: App, options: WorkerOptions, identity: str | None) -> Node:
    return app.node(
        queues=options.names_of_queues(),
        identity=identity,
        restart_seconds=0.0 if identity is None else options.restart,
        concurrency=options.concurrency,
        threads=options.threads,
        processes=options.processes,
        look_ahead_bytes=options.look_ahead_mb * 1_000_000,
        drain=options.drain,
        application=options.application,
        log_runs=options.log_runs,
    )


def _count_metrics(app: App, options: WorkerOptions) -> CollectorRegistry | None:
    """Count the metrics of this process, if they are served. Raise ConfigurationError when the
    library is missing."""
    if options.metrics_port is None:
        return None
    try:
        from fairlead.contrib.prometheus import observe
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"--metrics-port needs {error.name}: pip install 'fairlead[prometheus]'"
        ) from error
    return observe(app)


def _listen(options: WorkerOptions, routes: Routes) -> StatusServer:
    """Listen for requests of metrics and health. Raise ConfigurationError."""
    assert options.metrics_port is not None
    host, token = options.metrics_host, os.environ.get(METRICS_TOKEN) or None
    if token is not None and not _TOKEN.fullmatch(token):
        raise ConfigurationError(
            f"{METRICS_TOKEN}: use 16 or more ASCII letters, digits or -._~+/="
        )
    server = StatusServer(host, options.metrics_port, routes, token, (LIVE, READY))
    about = {"address": f"{host}:{server.port}", "has_token": token is not None}
    if token is None and not is_loopback(host):
        log.warning(
            "whoever reaches this address reads health and metrics, with names of queues and tasks:"
            f" set {METRICS_TOKEN}",
            extra=about,
        )
    else:
        log.info("health and metrics are served", extra=about)
    return server


def _log_start(app: App, node: Node, options: WorkerOptions) -> None:
    log.info(
        "worker starts",
        extra={
            "node": node.settings.name,
            "store": app.connections.cluster.database.location,
            "tasks": len(app.handlers),
            "concurrency": options.concurrency,
        },
    )


async def _apart(work: Coroutine[Any, Any, None]) -> None:
    """Do all work of this process out of the reach of handlers."""
    guard_loop(asyncio.get_running_loop())
    await apart_from_handlers(work)


async def _run(node: Node, until_empty: bool, health: NodeHealth) -> None:
    loop = asyncio.get_running_loop()
    is_stopping = False

    def stop(number: signal.Signals) -> None:
        nonlocal is_stopping
        if is_stopping:
            logging.shutdown()
            os._exit(128 + number)  # at once: other nodes resume the tasks
        is_stopping = True
        log.info(
            "stopping: running tasks may end; a second signal ends at once",
            extra={"in_flight": node.in_flight},
        )
        node.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    _keep_signals_of_children_apart()
    with _ending():
        await _serve(node, until_empty, health)


def _keep_signals_of_children_apart() -> None:
    """Let SIGTERM end a process that a handler forks, as `Pool.terminate()` of multiprocessing
    does. It inherits the signal handlers of asyncio and the pipe that wakes this loop, so the
    signal would stop this worker instead."""
    before = threading.local()  # the signal mask of the thread that forks

    def hold() -> None:
        before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.mask)

    def release_in_child() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        release()

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=release_in_child)


@contextmanager
def _ending() -> Iterator[None]:
    """End this process at most END_SECONDS after the block, with code 1 if it raises. Python alone
    waits for threads of handlers and for asyncio tasks that ignore their cancellation, for ever."""
    code, failure = 1, None

    def end() -> None:
        log.warning("the worker ends although handlers left something running", exc_info=failure)
        logging.shutdown()
        os._exit(code)

    try:
        yield
        code = 0
    except BaseException as error:
        failure = error
        raise
    finally:
        timer = threading.Timer(END_SECONDS, end)
        timer.daemon = True
        timer.start()


async def _serve(node: Node, until_empty: bool, health: NodeHealth) -> None:
    """Run the node; watch its event loop and, with `until_empty`, whether a task is left. Stop the
    node and raise if a watcher fails."""
    watchers = [asyncio.ensure_future(health.run())]
    if until_empty:
        watchers.append(asyncio.ensure_future(_stop_when_empty(node)))
    for task in watchers:
        task.add_done_callback(lambda task: node.stop() if _has_failed(task) else None)
    try:
        await node.run()
        for task in filter(_has_failed, watchers):
            await task
    finally:
        for task in watchers:
            task.cancel()


def _has_failed(task: asyncio.Future[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


async def _stop_when_empty(node: Node) -> None:
    while True:
        await asyncio.sleep(_CHECK_EVERY)
        await node.ready.wait()
        if node.in_flight:
            continue
        try:
            if await node.has_unfinished():
                continue
            unfinished, in_error = await node.unfinished()
        except StoreUnavailable:
            continue
        if not unfinished:
            log.info("nothing is left to run", extra={"tasks_in_error": in_error})
            node.stop()
            return


# several workers ----------------------------------------------------------------------------------


def _supervise(workers: int, options: WorkerOptions) -> int:
    """Run the workers under a supervisor; return the exit code."""
    app = load(options.application)
    _count_metrics(app, options)
    _ = app.connections.shared_cluster  # raises for bad URLs before any process starts
    app.close()
    fleet = Fleet(
        workers,
        drain=options.drain,
        start_timeout=options.start_timeout,
        until_empty=options.until_empty,
    )
    supervisor = Supervisor(workers, fleet, lambda slot: spawn(slot, sys.argv[1:]))
    if options.metrics_port is not None:
        from fairlead.supervisor.exposition import metrics_routes, registry_of

        routes = metrics_routes(registry_of(supervisor.total))
        supervisor.serve_status(routes, partial(_listen, options))
    log.info("supervisor starts", extra={"workers": workers, "pid": os.getpid()})
    code = supervisor.run()
    if code and supervisor.last_error is not None:
        say_error(str(supervisor.last_error))
    return code


def _serve_child(options: WorkerOptions, link: WorkerEnd) -> int:
    """Run one worker of a supervisor; return the exit code."""
    try:
        app = load(options.application)
        name = None if options.name is None else f"{options.name}-{link.slot}"
        registry = _count_metrics(app, options)
        node = _node(app, options, name)
        name_node(node.settings.name)
        _log_start(app, node, options)
        _collect_less()
        asyncio.run(_apart(_run_child(node, options, link, registry)))
        app.close()
    except (FairleadError, ExceptionGroup) as error:
        found = expected(error)
        if found is None:
            raise bug_in(error) from None
        messages, code = found
        link.fail("; ".join(messages))
        return code
    return 0


async def _run_child(
    node: Node,
    options: WorkerOptions,
    link: WorkerEnd,
    registry: CollectorRegistry | None,
) -> None:
    health = NodeHealth(node, options.start_timeout)

    def report() -> WorkerReport:
        if registry is None:
            return WorkerReport(health=health.check())
        from fairlead.supervisor.exposition import families_of

        return WorkerReport(health=health.check(), metrics=families_of(registry))

    def drain() -> None:
        # A service manager may signal all processes, so a second request is no reason to kill:
        # only the supervisor kills.
        node.stop()
        link.poke()

    async def report_ready() -> None:
        await node.ready.wait()
        link.poke()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, drain)
    _keep_signals_of_children_apart()
    link.serve(report, drain, options.drain + KILL_GRACE)
    ready = asyncio.ensure_future(report_ready())
    try:
        with _ending():
            await _serve(node, options.until_empty, health)
    finally:
        ready.cancel()
        link.close()
