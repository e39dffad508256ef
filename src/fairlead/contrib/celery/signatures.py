"""Signatures, chains, groups and chords. One submit writes all their tasks in one transaction; each
later task waits for the earlier ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional, Union

from fairlead.contrib.celery import missing
from fairlead.contrib.celery.messages import uuid
from fairlead.declare.options import Options

_OF_THE_FIRST = frozenset({"countdown", "eta"})
_OF_THE_LAST = frozenset({"link", "task_id", "unique_key"})
OPTIONS = frozenset(Options.__struct_fields__) | frozenset(
    {"countdown", "eta", "ignore_result", "link", "queue", "task_id"}
)
"""Options of a submit: those of Celery and those of Fairlead."""
Args = Iterable[Any] | None
Kwargs = Mapping[str, Any] | None


class Node:
    """One task to submit, and those before it. Raises ImproperlyConfigured for an option that is
    unknown or cannot be carried out."""

    def __init__(self, signature: Signature, options: Mapping[str, Any], before: Before) -> None:
        given = {name: value for name, value in options.items() if value not in (None, [], ())}
        missing.check_options(f"task {signature.task!r}", given, OPTIONS)
        self.signature = signature
        self.options = given
        self.before = before
        self.id = str(self.options.get("task_id") or uuid())
        self.wakes: list[str] = []
        mapped(before, lambda each: each.wakes.append(self.id))


Before = Optional[Union[Node, list["Before"]]]  # noqa: UP007, UP045 - a recursive type
"""The tasks before another one: none, one, or a list as deep as its groups."""


def mapped(before: Before, change: Callable[[Node], Any]) -> Any:
    """Return the nodes as `change` makes them: None, one, or a list as deep."""
    if isinstance(before, list):
        return [mapped(each, change) for each in before if each is not None]
    return None if before is None else change(before)


class Signature(missing.OfApplication):
    """A task with arguments and options, to be submitted later."""

    def __init__(
        self, task: Any, args: Args = None, kwargs: Kwargs = None, options: Kwargs = None,
        *, app: Any = None, immutable: bool = False,
    ) -> None:  # fmt: skip
        self._app = app
        self.task = str(getattr(task, "name", task))
        self.args = tuple(args or ())
        self.kwargs = dict(kwargs or {})
        self.options = dict(options or {})
        self.immutable = immutable

    def __or__(self, other: Any) -> Any:
        return chain(self, other) if isinstance(other, Signature) else NotImplemented

    def clone(self, args: Args = None, kwargs: Kwargs = None, **options: Any) -> Any:
        """Return a copy with more arguments, which come first, and more options."""
        same = copy.copy(self)
        same.options = {**self.options, **options}
        if not self.immutable:
            same.args = (*(args or ()), *self.args)
            same.kwargs = {**self.kwargs, **(kwargs or {})}
        return same

    def set(self, **options: Any) -> Signature:
        """Set options; return the signature."""
        self.immutable = options.pop("immutable", self.immutable)
        self.options.update(options)
        return self

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Submit with further arguments, which come first."""
        return self.apply_async(args, kwargs)

    def apply_async(self, args: Args = None, kwargs: Kwargs = None, **options: Any) -> Any:
        """Submit the signature with all that belongs to it in one transaction; return the result
        of its last task, or a GroupResult. Raise the errors of `Task.apply_async`."""
        wanted = self.clone(args, kwargs, **options)
        is_eager = self.app.conf.task_always_eager
        return wanted.apply() if is_eager else self.app.submit(wanted)

    def apply(
        self, args: Args = None, kwargs: Kwargs = None, throw: bool | None = None, **options: Any
    ) -> Any:
        """Run the signature here and now; with `throw`, raise the error of a task that fails."""
        throws = self.app.conf.task_eager_propagates if throw is None else throw
        return self.app.run_here(self.clone(args, kwargs, **options), throws)

    def add_to(self, nodes: list[Node], before: Before, shared: Mapping[str, Any]) -> Before:
        """Add the tasks of the signature to the nodes, after `before`, with options that it shares
        with others unless it has its own; return its last ones."""
        node = Node(self, {**shared, **self.options}, before)
        nodes.append(node)
        links = node.options.pop("link", ())
        inherited = {name: node.options[name] for name in ("connection",) if name in node.options}
        for callback in links if isinstance(links, list | tuple) else [links]:
            callback.add_to(nodes, node, inherited)
        return node


class _Composed(Signature):
    """A signature made of others."""

    def __init__(self, *tasks: Any, app: Any = None, **options: Any) -> None:
        given = tasks[0] if len(tasks) == 1 and not isinstance(tasks[0], Signature) else tasks
        self.tasks: list[Signature] = list(given)
        if any(not isinstance(each, Signature) for each in self.tasks):
            raise TypeError(f"{self.tasks!r}: use signatures, such as task.s(...)")
        app = app or next((each._app for each in self.tasks if each._app), None)
        super().__init__(f"celery.{type(self).__name__}", options=options, app=app)

    def clone(self, args: Args = None, kwargs: Kwargs = None, **options: Any) -> Any:
        same = super().clone(**options)
        taking = len(self.tasks) if isinstance(self, group) else 1
        same.tasks = [each.clone(args, kwargs) for each in self.tasks[:taking]]
        same.tasks += self.tasks[taking:]
        return same

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Submit it."""
        return self.apply_async(args, kwargs)


class chain(_Composed):
    """Tasks one after the other; each gets the result of the one before as first argument."""

    def __or__(self, other: Any) -> Any:
        more = other.tasks if isinstance(other, chain) else [other]
        return chain(*self.tasks, *more, app=self._app, **self.options)

    def add_to(self, nodes: list[Node], before: Before, shared: Mapping[str, Any]) -> Before:
        given = {**shared, **self.options}
        ending = {name: given.pop(name) for name in _OF_THE_LAST & given.keys()}
        for task in self.tasks:
            given |= ending if task is self.tasks[-1] else {}
            before = task.add_to(nodes, before, given)
            given = {name: value for name, value in given.items() if name not in _OF_THE_FIRST}
        return before


class group(_Composed):
    """Tasks side by side. Raises TypeError for options that one task can have only."""

    def __len__(self) -> int:
        return len(self.tasks)

    def add_to(self, nodes: list[Node], before: Before, shared: Mapping[str, Any]) -> Before:
        own = {**shared, **self.options}
        if taken := sorted(_OF_THE_LAST & own.keys()):
            raise TypeError(f"a group takes no {taken[0]}: use a chord, or give it to one task")
        ends: list[Before] = []
        for task in self.tasks:
            end = task.add_to(nodes, before, own)
            # Celery flattens groups in groups.
            ends += end if isinstance(task, group) and isinstance(end, list) else [end]
        return ends


class chord(chain):
    """A group, the header, and a task that gets the list of its results, the body."""

    def __init__(self, header: Any, body: Any = None, **options: Any) -> None:
        tasks = header if isinstance(header, group) else group(header)
        super().__init__(*([tasks] if body is None else [tasks, body]), **options)

    def __call__(self, body: Any = None, **options: Any) -> Any:
        """Submit the chord with this body, or the one that it has."""
        wanted = self if body is None else chord(self.tasks[0], body, **self.options)
        return wanted.apply_async(**options)
