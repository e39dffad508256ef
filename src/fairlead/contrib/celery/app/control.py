"""The part of remote control that is carried over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fairlead.contrib.celery import missing

if TYPE_CHECKING:
    from fairlead.contrib.celery.app.base import Celery


class Control(missing.Names, names=missing.CONTROL):
    """The part of Celery's remote control that is carried over: revoking tasks."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def revoke(self, task_id: str | Iterable[str], terminate: bool = False, **options: Any) -> None:
        """Cancel one task or several that have not ended, as `AsyncResult.revoke`."""
        for each in [task_id] if isinstance(task_id, str) else list(task_id):
            self._app.AsyncResult(each).revoke(terminate=terminate)
