"""Results of several tasks: a set of any, and those of a group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fairlead.contrib.celery import missing


class ResultSet(missing.Names, names=missing.RESULTS):
    """The results of several tasks, in order, each once."""

    def __init__(self, results: Iterable[Any] = (), app: Any = None, **options: Any) -> None:
        self.results: list[Any] = []
        self._app = app
        self.update(results)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: [{', '.join(str(each) for each in self.results)}]>"

    def add(self, result: Any) -> None:
        """Add a result, unless it is there."""
        if result not in self.results:
            self.results.append(result)

    def update(self, results: Iterable[Any]) -> None:
        """Add results that are not there."""
        for each in results:
            self.add(each)

    def discard(self, result: Any) -> None:
        """Remove a result, or the one of an id, if it is there."""
        self.results = [each for each in self.results if each != result]

    def remove(self, result: Any) -> None:
        """Remove a result, or the one of an id. Raise KeyError if it is not there."""
        if result not in self.results:
            raise KeyError(result)
        self.discard(result)

    def clear(self) -> None:
        """Remove all results."""
        self.results = []

    def __iter__(self) -> Iterator[Any]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: int) -> Any:
        return self.results[index]

    def ready(self) -> bool:
        """Return whether all tasks have ended."""
        return all(each.ready() for each in self.results)

    def successful(self) -> bool:
        """Return whether all tasks have succeeded."""
        return all(each.successful() for each in self.results)

    def failed(self) -> bool:
        """Return whether a task has failed."""
        return any(each.failed() for each in self.results)

    def waiting(self) -> bool:
        """Return whether a task has not ended."""
        return not self.ready()

    def completed_count(self) -> int:
        """Return the number of tasks that have succeeded."""
        return sum(each.successful() for each in self.results)

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        interval: float = 0.5,
        callback: Callable[[str, Any], Any] | None = None,
        **options: Any,
    ) -> list[Any]:
        """Wait for all tasks, at most `timeout` seconds together; return the list of their results,
        which is empty with `callback`: that gets each id and result. Raise as `AsyncResult.get`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        results = []
        for each in self.results:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            value = each.get(timeout=left, propagate=propagate, **options)
            if callback is None:
                results.append(value)
            else:
                callback(each.id, value)
        return results

    join = join_native = get

    def revoke(self, **options: Any) -> None:
        """Cancel all tasks that have not ended."""
        for each in self.results:
            each.revoke(**options)

    def _drop(self) -> None:
        """Do nothing: the store removes results with its history."""

    forget = _drop

    def maybe_throw(self, callback: Any = None, propagate: bool = True) -> None:
        """Raise the exception of the first task that failed; call `callback` with each id and
        result."""
        for each in self.results:
            value = each.maybe_throw(propagate=propagate)
            if callback is not None:
                callback(each.id, value)

    maybe_reraise = maybe_throw


class GroupResult(ResultSet):
    """The results of the tasks of a group, in order."""

    def __init__(
        self,
        id: str | None = None,
        results: Iterable[Any] = (),
        parent: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(results, **options)
        self.id = id
        self.parent = parent

    def __repr__(self) -> str:
        return f"<GroupResult: {self.id} [{', '.join(str(each) for each in self.results)}]>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GroupResult):
            return NotImplemented
        return (other.id, other.results) == (self.id, self.results)

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def children(self) -> list[Any]:
        """The results."""
        return self.results

    def as_list(self) -> list[str]:
        """Return the ids of the tasks."""
        return [id for each in self.results for id in each.as_list()]

    def as_tuple(self) -> tuple[Any, ...]:
        """Return ids for `result_from_tuple`."""
        parent = self.parent
        return (
            (self.id, None if parent is None else parent.as_tuple()),
            [each.as_tuple() for each in self.results],
        )
