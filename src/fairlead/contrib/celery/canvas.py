"""Chains, groups, chords and chunks. One submit writes all their tasks in one transaction; each
later task waits for the earlier ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fairlead.contrib.celery.plan import Before, Plan
from fairlead.contrib.celery.signature import (
    KINDS,
    Signature,
    copied,
    listed,
    maybe_signature,
    signature,
)

if TYPE_CHECKING:
    from fairlead.contrib.celery.app.base import Celery

__all__ = [
    "Signature",
    "chain",
    "chord",
    "chunks",
    "group",
    "maybe_signature",
    "signature",
    "subtask",
    "xmap",
    "xstarmap",
]
subtask = signature


def _signatures(kept: dict[str, Any], name: str, app: Celery | None) -> list[Signature]:
    """Return an entry as a list of signatures, which stays the entry: changes of it count."""
    if not isinstance(kept[name], list):
        kept[name] = list(kept[name])
    kept[name][:] = [signature(each, app=app) for each in kept[name]]
    found: list[Signature] = kept[name]
    return found


class _Composed(Signature):
    """A signature made of others."""

    kind = ""

    def __init__(self, *tasks: Any, app: Celery | None = None, **options: Any) -> None:
        given = tasks[0] if len(tasks) == 1 and not isinstance(tasks[0], Signature) else tasks
        if isinstance(given, Mapping):
            super().__init__(given, app=app)
            return
        kept = [signature(each, app=app) for each in given]
        super().__init__(
            f"celery.{self.kind}",
            (),
            {"tasks": kept},
            options,
            app=app or next((each._app for each in kept if each._app), None),
            subtask_type=self.kind,
        )

    @property
    def tasks(self) -> list[Signature]:
        """The signatures in order."""
        return _signatures(self["kwargs"], "tasks", self._app)

    @tasks.setter
    def tasks(self, tasks: Iterable[Any]) -> None:
        self["kwargs"]["tasks"] = list(tasks)

    def __repr__(self) -> str:
        return f"{self.kind}({', '.join(map(repr, self.tasks))})"

    def clone(
        self, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Signature:
        same = signature(copied(self), app=self._app)
        same["options"].update(options)
        tasks = self._partial(same["kwargs"]["tasks"], tuple(args), kwargs)
        same["kwargs"]["tasks"] = tasks
        return same

    def _partial(
        self, tasks: list[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
    ) -> list[Any]:
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Submit it; other than a single signature, which a call runs here."""
        return self.apply_async(args, kwargs)

    def _shared(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Return options that hold for each of its tasks."""
        return {name: self.options[name] for name in names if name in self.options}


SHARED = (
    "countdown", "eta", "expires", "priority", "queue", "headers", "fairness_key", "weight",
    "context", "connection", "ignore_result",
)  # fmt: skip
"""Options of a chain, group or chord that its tasks get unless they have their own."""


class chain(_Composed):
    """Tasks one after the other; each gets the result of the one before as first argument."""

    kind = "chain"

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, Signature):
            return NotImplemented
        more = other.tasks if isinstance(other, chain) else [other]
        joined = chain(*self.tasks, *more, app=self._app)
        joined["options"].update(self.options)
        return joined

    def _partial(
        self, tasks: list[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
    ) -> list[Any]:
        if not tasks or not (args or kwargs):
            return tasks
        return [signature(tasks[0], app=self._app).clone(args, kwargs), *tasks[1:]]

    def apply_async(
        self, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """Submit it as `Signature.apply_async`; return None for a chain of no tasks."""
        return super().apply_async(args, kwargs, **options) if self.tasks else None

    def add_to(self, plan: Plan, before: Before) -> Before:
        errbacks = listed(self.options.get("link_error"))
        tasks = self.tasks
        for position, task in enumerate(tasks):
            shared = self._shared(SHARED)
            if position:  # only the first one waits
                shared = {k: v for k, v in shared.items() if k not in ("countdown", "eta")}
            is_header = isinstance(task, group) and position < len(tasks) - 1
            _inherit(task, shared, [] if is_header else errbacks)
            if position == len(tasks) - 1:
                for callback in listed(self.options.get("link")):
                    task.link(callback)
                if self.id:
                    task.set(task_id=self.id)
            before = task.add_to(plan, before)
        return before


class group(_Composed):
    """Tasks side by side."""

    kind = "group"

    def __len__(self) -> int:
        return len(self.tasks)

    def link(self, callback: Any) -> Any:
        """Add a callback without arguments that runs after the first task; return it. Use a chord
        for one that runs after all."""
        return self.tasks[0].link(signature(callback).clone().set(immutable=True))

    def link_error(self, errback: Any) -> Any:
        """Add an errback to each task; return the errbacks."""
        return tuple(each.link_error(signature(errback).clone()) for each in self.tasks)

    def set_immutable(self, immutable: bool) -> None:
        """Set it for each task."""
        for each in self.tasks:
            each.set_immutable(immutable)

    def apply_async(
        self, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """Submit it as `Signature.apply_async`. Raise TypeError for a callback."""
        if options.get("link") is not None or options.get("link_error") is not None:
            raise TypeError("Cannot add link to group: use a chord, or link each task")
        return super().apply_async(args, kwargs, **options)

    def _partial(
        self, tasks: list[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
    ) -> list[Any]:
        return [signature(each, app=self._app).clone(args, kwargs) for each in tasks]

    def skew(self, start: float = 1.0, stop: float | None = None, step: float = 1.0) -> group:
        """Set countdowns on the tasks: `start`, then `step` seconds more each, up to `stop`."""
        wait = start
        for task in self.tasks:
            task.set(countdown=wait)
            wait = wait if stop and wait + step > stop else wait + step
        return self

    def add_to(self, plan: Plan, before: Before) -> Before:
        ends: list[Before] = []
        for task in self.tasks:
            _inherit(task, self._shared(SHARED), listed(self.options.get("link_error")))
            for callback in listed(self.options.get("link")):
                task.link(callback)
            end = task.add_to(plan, before)
            if isinstance(task, group) and isinstance(end, list):
                ends += end  # Celery flattens groups in groups
            else:
                ends.append(end)
        return ends


class chord(Signature):
    """A group, the header, and a task that gets the list of its results, the body."""

    def __init__(
        self,
        header: Any,
        body: Any = None,
        *,
        app: Celery | None = None,
        **options: Any,
    ) -> None:
        if isinstance(header, Mapping) and header.get("subtask_type") == "chord":
            super().__init__(header, app=app)
            return
        tasks = header if isinstance(header, group) else group(header, app=app)
        super().__init__(
            "celery.chord",
            (),
            {"header": tasks, "body": None if body is None else signature(body, app=app)},
            options,
            app=app or tasks._app,
            subtask_type="chord",
        )

    def _part(self, name: str) -> Any:
        found = self["kwargs"][name] = maybe_signature(self["kwargs"][name], app=self._app)
        return found

    @property
    def body(self) -> Any:
        """The task that gets the results; None without one."""
        return self._part("body")

    @body.setter
    def body(self, body: Any) -> None:
        self["kwargs"]["body"] = body

    @property
    def tasks(self) -> list[Signature]:
        """The signatures of the header in order."""
        found: list[Signature] = self._part("header").tasks
        return found

    @tasks.setter
    def tasks(self, tasks: Iterable[Any]) -> None:
        self._part("header").tasks = tasks

    def set_immutable(self, immutable: bool) -> None:
        """Set it for each task of the header."""
        self._part("header").set_immutable(immutable)

    def __repr__(self) -> str:
        return f"chord({self._part('header')!r}, {self.body!r})"

    def __call__(self, body: Any = None, **options: Any) -> Any:
        """Submit the chord with this body, or the one that it has."""
        wanted = self.clone(**options)
        if body is not None:
            wanted["kwargs"]["body"] = signature(body, app=self._app)
        return wanted.apply_async()

    def clone(
        self, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Signature:
        same = signature(copied(self), app=self._app)
        same["options"].update(options)
        if args or kwargs:
            same["kwargs"]["header"] = self._part("header").clone(args, kwargs)
        return same

    def add_to(self, plan: Plan, before: Before) -> Before:
        shared = {name: self.options[name] for name in SHARED if name in self.options}
        header, body = self._part("header"), self.body
        _inherit(header, shared, [])
        errbacks = listed(self.options.get("link_error"))
        _inherit(body, {k: v for k, v in shared.items() if k not in ("countdown", "eta")}, errbacks)
        for callback in listed(self.options.get("link")):
            body.link(callback)
        if self.id:
            body.set(task_id=self.id)
        last: Before = body.add_to(plan, header.add_to(plan, before))
        return last


class chunks(Signature):
    """A group of tasks that each run a part of a list of arguments."""

    def __init__(
        self,
        task: Any,
        it: Iterable[Any] = (),
        n: int = 1,
        *,
        app: Celery | None = None,
        **more: Any,
    ) -> None:
        if isinstance(task, Mapping) and task.get("subtask_type") == "chunks":
            super().__init__(task, app=app)
            return
        one = signature(task, app=app)
        kwargs = {"task": one, "it": [list(each) for each in it], "n": n}
        super().__init__(
            "celery.chunks", (), kwargs, more, app=app or one._app, subtask_type="chunks"
        )

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Submit it."""
        return self.apply_async(**options)

    def group(self) -> Signature:
        """Return the parts as a group."""
        task, it, n = (self["kwargs"][name] for name in ("task", "it", "n"))
        parts = [it[start : start + n] for start in range(0, len(it), n)]
        made = group([xstarmap(task, part, app=self._app) for part in parts], app=self._app)
        made["options"].update(self.options)
        return made

    def add_to(self, plan: Plan, before: Before) -> Before:
        return self.group().add_to(plan, before)


def xmap(task: Any, it: Iterable[Any], *, app: Celery | None = None) -> Signature:
    """Return the signature of one task that calls `task` with each item; its result is the list."""
    return _mapping("celery.map", task, list(it), app)


def xstarmap(task: Any, it: Iterable[Any], *, app: Celery | None = None) -> Signature:
    """Return the signature of one task that calls `task` with the arguments of each item; its
    result is the list."""
    return _mapping("celery.starmap", task, [list(each) for each in it], app)


def _mapping(name: str, task: Any, it: list[Any], app: Celery | None) -> Signature:
    one = signature(task, app=app)
    return Signature(name, (), {"task": one, "it": it}, app=app or one._app)


def _inherit(task: Signature, shared: Mapping[str, Any], errbacks: Iterable[Any]) -> None:
    task["options"] = {**shared, **task["options"]}
    for errback in errbacks:
        task.link_error(errback)


KINDS.update(chain=chain, group=group, chord=chord, chunks=chunks)
