"""Django's connections in a worker: checked and cleaned around each run, and the transaction of a
handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from asgiref.sync import sync_to_async
from django.db import InterfaceError, OperationalError, connections, reset_queries, transaction

from fairlead.declare.current import CurrentTask
from fairlead.declare.handler import ExecutorKind, Handler, RunInterceptor
from fairlead.errors import StoreUnavailable


def clean_connections() -> None:
    """Close the connections of this thread that are broken or too old, and let the others be
    checked before their next use. Leave those inside an atomic block alone, as in a TestCase."""
    reset_queries()
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.health_check_enabled = True
            connection.close_if_unusable_or_obsolete()


class CleanConnections(RunInterceptor):
    """Cleans Django's connections before and after each run, in the thread in which the handler
    uses them. After an outage of the database, the next run gets a new connection."""

    def __init__(self, handlers: Callable[[str], Handler | None]) -> None:
        self._handlers = handlers

    def running(self, task: CurrentTask) -> AbstractContextManager[object]:
        return self._running(task)

    @contextmanager
    def _running(self, task: CurrentTask) -> Iterator[None]:
        handler = self._handlers(task.name)
        if handler is None or handler.executor_kind is not ExecutorKind.THREAD:
            yield
            return
        clean_connections()
        try:
            yield
        finally:
            clean_connections()

    async def run(self, task: CurrentTask, proceed: Callable[[], Awaitable[Any]]) -> Any:
        clean = sync_to_async(clean_connections, thread_sensitive=True)
        await clean()
        try:
            return await proceed()
        finally:
            await clean()

    @contextmanager
    def _in_child(self) -> Iterator[None]:
        clean_connections()
        try:
            yield
        finally:
            clean_connections()

    def in_child(self, task: CurrentTask) -> AbstractContextManager[object]:
        return self._in_child()


@contextmanager
def begin_transaction(alias: str) -> Iterator[Any]:
    """Run the block in a transaction of Django's connection, and give the driver's connection. On
    SQLite, the transaction writes from its beginning. Raise StoreUnavailable if none can begin."""
    connection = connections[alias]
    if connection.vendor == "sqlite":
        connection.transaction_mode = "IMMEDIATE"
    block = transaction.atomic(using=alias)
    try:
        connection.ensure_connection()
        block.__enter__()
    except (OperationalError, InterfaceError) as error:
        raise StoreUnavailable(f"database {alias!r}: {error}") from error
    with _entered(block):
        yield connection.connection


@contextmanager
def _entered(block: Any) -> Iterator[None]:
    """End a block that was entered already."""
    try:
        yield
    except BaseException as error:
        if not block.__exit__(type(error), error, error.__traceback__):
            raise
    else:
        block.__exit__(None, None, None)
