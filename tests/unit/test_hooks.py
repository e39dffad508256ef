"""Hooks set on an application after it was made take effect with the next submit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from fairlead import App
from fairlead.errors import InvalidTask
from fairlead.model import NewTask
from fairlead.ports.observer import SafeObserver, Silent
from fairlead.testing import drain


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'tasks.db'}")


def test_an_observer_interceptors_and_a_limit_set_late_hold_for_the_next_submit(app: App) -> None:
    observed, intercepted = list[str](), list[str]()

    class Recording(Silent):
        def submitted(self, tasks: Sequence[NewTask]) -> None:
            observed.extend(task.name for task in tasks)

    class RecordingInterceptor:
        def submitting(self, draft):
            intercepted.append(draft.handler.name)
            return draft

    @app.task
    def work() -> None: ...

    work.submit()
    submitter = app.submitter
    app.observer, app.interceptors = Recording(), (RecordingInterceptor(),)
    work.submit()
    assert observed == intercepted == ["work"] and app.submitter is submitter
    app.payload_limit = 1
    with pytest.raises(InvalidTask, match="payload_limit"):
        work.submit()
    app.close()


class Raising(Silent):
    """An observer each of whose methods raises."""

    def __getattribute__(self, name: str) -> object:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise RuntimeError(f"no metrics for {name}")


async def test_an_observer_that_raises_fails_no_submit_and_ends_no_node(app: App) -> None:
    ran: list[int] = []
    app.observer = Raising()

    @app.task
    def work(n: int) -> None:
        ran.append(n)

    for n in range(3):
        await work.submit_async(n=n)
    await drain(app)
    assert sorted(ran) == [0, 1, 2]
    app.close()


def test_exceptions_of_an_observer_are_logged_more_and_more_rarely(
    caplog: pytest.LogCaptureFixture,
) -> None:
    observer = SafeObserver(Raising)
    with caplog.at_level(logging.ERROR, "fairlead.observer"):
        for _ in range(9):
            observer.counted("healed_triggers")
        observer.gauges(1, 2)
    logged = [(record.method, record.failures) for record in caplog.records]  # type: ignore[attr-defined]
    assert logged == [("counted", n) for n in (1, 2, 4, 8)] + [("gauges", 1)]
