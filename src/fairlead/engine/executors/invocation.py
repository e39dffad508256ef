"""Calls of handlers through interceptors. A transactional handler runs inside a transaction."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from typing import Any

from fairlead.declare.current import CurrentTask
from fairlead.declare.handler import entered, overridden
from fairlead.engine.context import NodeContext
from fairlead.engine.executors.loop import Invoke
from fairlead.engine.executors.thread import Call
from fairlead.engine.outcome import NotBegun, done
from fairlead.engine.run import Run, Superseded
from fairlead.errors import StoreUnavailable
from fairlead.model import Finish
from fairlead.ports.statements import Database, Steps
from fairlead.ports.task_store import Completed


class Invocation:
    """Calls of handlers. The writes of a transactional handler, the tasks it submits and
    its completion commit together or not at all."""

    def __init__(self, context: NodeContext) -> None:
        interceptors = context.served.interceptors
        self._node = context.name
        self._context = context
        self._database: Database = context.cluster.database
        self._announce = context.channel.announce
        self._run_hooks = overridden(interceptors, "run")
        self._running_hooks = overridden(interceptors, "running")
        self._clock = context.clock
        # Choose once, so that interceptors cost nothing where there are none.
        self.on_loop: Invoke = self._intercepted_on_loop if self._running_hooks else self._on_loop
        """Run an asynchronous handler; return its result, or the end that its transaction has
        written."""
        self.in_thread: Call = (
            self._intercepted_in_thread if self._running_hooks else self._in_thread
        )
        """Run a synchronous handler in this thread; return its result, or the end that its
        transaction has written."""

    def intercepted(self, run: Run) -> AbstractContextManager[object]:
        """Return a context manager that enters the interceptors of a run."""
        return entered(self._running_hooks, run.current) if self._running_hooks else nullcontext()

    async def _intercepted_on_loop(self, run: Run) -> Any:
        with self.intercepted(run):
            return await self._on_loop(run)

    def _intercepted_in_thread(self, run: Run) -> Any:
        with self.intercepted(run):
            return self._in_thread(run)

    async def _on_loop(self, run: Run) -> Any:
        args, kwargs = run.arguments()
        handler = run.handler
        assert handler is not None
        if not handler.transactional and not self._run_hooks:
            return await handler.function(*args, **kwargs)
        call: Callable[..., Any] = handler.function
        if handler.transactional:
            call = functools.partial(self._in_transaction_async, run)
        call = functools.partial(call, *args, **kwargs)
        return await self._intercepted(run.current, call)

    def _in_thread(self, run: Run) -> Any:
        args, kwargs = run.arguments()
        handler = run.handler
        assert handler is not None
        if handler.transactional:
            return self._in_transaction(run, *args, **kwargs)
        return handler.function(*args, **kwargs)

    async def _intercepted(self, task: CurrentTask, call: Callable[[], Any]) -> Any:
        for run in reversed(self._run_hooks):
            call = functools.partial(run, task, call)
        return await call()

    def _in_transaction(self, run: Run, /, *args: Any, **kwargs: Any) -> Finish:
        handler, current = run.handler, run.current
        assert handler is not None
        with self._transaction(run) as connection:
            current.connection = connection
            try:
                result = handler.function(*args, **kwargs, connection=connection)
                finish = self._finish_of(run, result)
                complete = (
                    self._database.complete if handler.transaction is None else self._database.join
                )
                steps = self._completion(finish)
                completed = complete(connection, steps)
                self._check(run, completed)
            finally:
                current.connection = None
        return self._committed(run, finish, completed)

    async def _in_transaction_async(self, run: Run, /, *args: Any, **kwargs: Any) -> Finish:
        handler, current = run.handler, run.current
        assert handler is not None
        async with self._transaction_async(run) as connection:
            current.connection = connection
            try:
                result = await handler.function(*args, **kwargs, connection=connection)
                finish = self._finish_of(run, result)
                steps = self._completion(finish)
                completed = await self._database.complete_async(connection, steps)
                self._check(run, completed)
            finally:
                current.connection = None
        return self._committed(run, finish, completed)

    @contextmanager
    def _transaction(self, run: Run) -> Iterator[Any]:
        """Run the block in a transaction. Raise NotBegun, without the block, if none can begin
        now."""
        run.is_beginning = True
        with ExitStack() as stack:
            handler = run.handler
            begin = (handler and handler.transaction) or self._database.transaction
            with _not_begun():
                connection = stack.enter_context(begin())
            run.begin(self._clock.now())
            yield connection

    @asynccontextmanager
    async def _transaction_async(self, run: Run) -> AsyncIterator[Any]:
        """Do what `_transaction` does, on the event loop."""
        run.is_beginning = True
        async with AsyncExitStack() as stack:
            with _not_begun():
                connection = await stack.enter_async_context(self._database.transaction_async())
            run.begin(self._clock.now())
            yield connection

    def _completion(self, finish: Finish) -> Steps[Completed]:
        tables = self._context.ports.tables
        assert tables is not None  # other stores have no transactional handlers
        return tables.completion(self._node, [finish])

    def _finish_of(self, run: Run, result: Any) -> Finish:
        if run.cancel_reason is not None:
            raise Superseded(f"the run was stopped ({run.cancel_reason}) before it could commit")
        # `done` raises for a bad result. Call it inside the transaction, which is then rolled back.
        return done(run, result, self._clock.now())

    @staticmethod
    def _check(run: Run, completed: Completed) -> None:
        if completed.refused:
            raise Superseded(
                "the task was reassigned to another node while it ran; its transaction was"
                " rolled back"
            )

    def _committed(self, run: Run, finish: Finish, completed: Completed) -> Finish:
        for notification in [*run.current.notifications, completed.notification]:
            if notification is not None:
                self._announce(notification)
        return finish


@contextmanager
def _not_begun() -> Iterator[None]:
    """Raise NotBegun in place of an outage of the store."""
    try:
        yield
    except StoreUnavailable as error:
        raise NotBegun(f"its transaction could not begin: {error}") from error
