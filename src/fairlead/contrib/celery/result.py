"""Results of submitted tasks by id, of groups, and of tasks that ran at the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.contrib.celery.async_result import AsyncResult
from fairlead.contrib.celery.eager_result import EagerResult
from fairlead.contrib.celery.result_sets import GroupResult, ResultSet

if TYPE_CHECKING:
    from fairlead.contrib.celery.app.base import Celery

__all__ = ["AsyncResult", "EagerResult", "GroupResult", "Result", "ResultSet", "result_from_tuple"]

Result = AsyncResult | GroupResult
"""Result of one task or of a group."""


def result_from_tuple(given: Any, app: Celery | None = None) -> Result:
    """Return the result of `as_tuple`."""
    (id, parent), children = given
    before = None if parent is None else result_from_tuple(parent, app)
    if children is None:
        return AsyncResult(id, app=app, parent=before)
    return GroupResult(id, [result_from_tuple(each, app) for each in children], before)
