"""Hooks set on an application after it was made take effect with the next submit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fairlead import App
from fairlead.errors import InvalidTask
from fairlead.model import NewTask
from fairlead.ports.observer import Silent


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'tasks.db'}")


def test_a_smaller_payload_limit_holds_for_the_next_submit(app: App) -> None:
    @app.task
    def keep(text: str) -> None: ...

    keep.submit(text="x" * 100)
    app.payload_limit = 20
    with pytest.raises(InvalidTask, match="payload_limit"):
        keep.submit(text="x" * 100)
    app.close()


def test_an_observer_set_late_observes_the_next_submit(app: App) -> None:
    observed: list[str] = []

    class Recording(Silent):
        def submitted(self, tasks: Sequence[NewTask]) -> None:
            observed.extend(task.name for task in tasks)

    @app.task
    def work() -> None: ...

    work.submit()
    submitter = app.submitter
    app.observer = Recording()
    work.submit()
    assert observed == ["work"] and app.submitter is submitter
    app.close()


def test_an_interceptor_set_late_sees_the_next_submit(app: App) -> None:
    seen: list[str] = []

    class RecordingInterceptor:
        def submitting(self, draft):
            seen.append(draft.handler.name)
            return draft

    @app.task
    def work() -> None: ...

    work.submit()
    app.interceptors = (RecordingInterceptor(),)
    work.submit()
    assert seen == ["work"]
    app.close()
