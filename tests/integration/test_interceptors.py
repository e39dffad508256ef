"""Interceptors: they edit submits and wrap runs, in their order."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest

import fairlead
from fairlead import (
    App,
    Fixed,
)
from fairlead.testing import drain

pytestmark = pytest.mark.virtual_time


async def test_interceptors_edit_every_submit_and_wrap_every_run(sqlite_url: str) -> None:
    calls: list[str] = []

    class Counting(fairlead.Interceptor):
        def submitting(self, draft):
            calls.append("submit")
            return fairlead.Draft(
                draft.handler,
                draft.args,
                draft.kwargs,
                draft.options.changed({"context": {"by": "me"}}),
            )

        async def run(self, task, proceed):
            calls.append(f"before {task.context['by']}")
            try:
                return await proceed()
            finally:
                calls.append("after")

    app = App(sqlite_url, interceptors=[Counting(), Counting()])
    app.migrate()

    @app.task
    async def pay() -> None:
        calls.append("pay")

    pay.submit()
    await drain(app)
    assert calls == ["submit"] * 2 + ["before me"] * 2 + ["pay"] + ["after"] * 2
    app.close()


async def test_interceptors_surround_every_submit_and_run_and_the_first_one_is_outermost(
    sqlite_url: str,
) -> None:
    calls: list[str] = []

    class Around(fairlead.Interceptor):
        def __init__(self, name: str) -> None:
            self.name = name

        @contextmanager
        def submission(self, submission):
            calls.append(f"{self.name} submits {len(submission.drafts)}")
            yield
            calls.append(f"{self.name} has submitted {len(submission.handles)}")

        @contextmanager
        def running(self, task):
            calls.append(
                f"{self.name} before {task.attempt} in {threading.current_thread().name.rpartition('-')[0]}"
            )
            try:
                yield
            except ValueError as error:
                calls.append(f"{self.name} sees {error}")
                raise

    app = App(sqlite_url, interceptors=[Around("a"), fairlead.Interceptor(), Around("b")])

    @app.task(retry=Fixed(0, max_attempts=2))
    def pay() -> None:
        if (task := fairlead.current_task()) is not None and task.attempt == 1:
            raise ValueError("no")

    pay.submit_many([{}])
    submitted, calls[:] = list(calls), []
    assert submitted == ["a submits 1", "b submits 1", "b has submitted 1", "a has submitted 1"]
    await drain(app)
    assert calls == [
        "a before 1 in fairlead-handler",
        "b before 1 in fairlead-handler",
        "b sees no",
        "a sees no",
        "a before 2 in fairlead-handler",
        "b before 2 in fairlead-handler",
    ]
    app.close()
