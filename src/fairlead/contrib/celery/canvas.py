"""Signatures, chains, groups and chords. One submit writes all their tasks in one transaction;
each later task waits for the earlier ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fairlead.contrib.celery import missing
from fairlead.contrib.celery.plan import Before, Plan

if TYPE_CHECKING:
    from fairlead.contrib.celery.app.base import Celery
    from fairlead.contrib.celery.result import Result


class Signature(dict[str, Any], missing.Names, names=missing.SIGNATURE):
    """A task with arguments and options, to be submitted later. A map, so that it can be an
    argument itself."""

    _app: Celery | None

    def __init__(
        self,
        task: Any = None,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        app: Celery | None = None,
        immutable: bool = False,
        subtask_type: str | None = None,
        **more: Any,
    ) -> None:
        self._app = app
        if isinstance(task, Mapping):
            super().__init__(copied(task))
            return
        super().__init__(
            task=getattr(task, "name", task),
            args=tuple(args or ()),
            kwargs=dict(kwargs or {}),
            options={**(options or {}), **more},
            immutable=immutable,
            subtask_type=subtask_type,
        )

    # parts ----------------------------------------------------------------------------------------

    @property
    def app(self) -> Celery:
        """The application of the signature."""
        from fairlead.contrib.celery.app.current import current

        return self._app or current()

    @property
    def task(self) -> str:
        """Name of the task."""
        return str(self["task"])

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments."""
        return tuple(self["args"])

    @property
    def kwargs(self) -> dict[str, Any]:
        """Arguments by name."""
        return dict(self["kwargs"])

    @property
    def options(self) -> dict[str, Any]:
        """Options of the submit."""
        options: dict[str, Any] = self["options"]
        return options

    @property
    def immutable(self) -> bool:
        """Whether the results of the tasks before are left out of its arguments."""
        return bool(self["immutable"])

    @property
    def id(self) -> str | None:
        """Id that was chosen for the task; None without one."""
        return self.options.get("task_id")

    def __repr__(self) -> str:
        shown = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        return f"{self.task}({', '.join(shown)})"

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, Signature):
            return NotImplemented
        return chain(self, other, app=self._app)

    # changes --------------------------------------------------------------------------------------

    def clone(
        self, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Signature:
        """Return a copy with more arguments, which come first, and more options."""
        same = signature(copied(self), app=self._app)
        if not self.immutable:
            same["args"] = (*args, *same["args"])
            same["kwargs"] = {**same["kwargs"], **(kwargs or {})}
        same["options"] = {**same["options"], **options}
        return same

    partial = clone

    def set(self, immutable: bool | None = None, **options: Any) -> Signature:
        """Set options; return the signature."""
        if immutable is not None:
            self["immutable"] = immutable
        self["options"].update(options)
        return self

    def link(self, callback: Any) -> Any:
        """Add a callback that runs after the task with its result; return the callback."""
        self["options"]["link"] = [*listed(self.options.get("link")), callback]
        return callback

    def link_error(self, errback: Any) -> Any:
        """Add an errback that runs if the task fails; return the errback."""
        self["options"]["link_error"] = [*listed(self.options.get("link_error")), errback]
        return errback

    def on_error(self, errback: Any) -> Signature:
        """Add an errback; return the signature."""
        self.link_error(errback)
        return self

    # submitting -----------------------------------------------------------------------------------

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Submit with further arguments, which come first."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """Submit the signature with all that belongs to it in one transaction; return the result
        of its last task, or a GroupResult. Raise the errors of `Task.apply_async`."""
        wanted = self.clone(args or (), kwargs, **options)
        if self.app.conf.task_always_eager:
            return self._run_here(wanted, None)
        return self.app.submit(wanted)

    def apply(
        self,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        throw: bool | None = None,
        **options: Any,
    ) -> Any:
        """Run the signature here and now."""
        return self._run_here(self.clone(args or (), kwargs, **options), throw)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function of the task here, as a plain call."""
        wanted = self.clone(args, kwargs)
        return self.app.tasks[self.task](*wanted.args, **wanted.kwargs)

    def _run_here(self, wanted: Signature, throw: bool | None) -> Result:
        throws = self.app.conf.task_eager_propagates if throw is None else throw
        return self.app.run_here(wanted, bool(throws))

    def add_to(self, plan: Plan, before: Before) -> Before:
        """Add the tasks of the signature to a plan, after `before`; return its last ones."""
        node = plan.add(self, before)
        for callback in listed(self.options.get("link")):
            signature(callback, app=self._app).add_to(plan, node)
        return node


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
        return [signature(each, app=self._app) for each in self["kwargs"]["tasks"]]

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

    def add_to(self, plan: Plan, before: Before) -> Before:
        errbacks = listed(self.options.get("link_error"))
        tasks = self.tasks
        for position, task in enumerate(tasks):
            shared = self._shared(SHARED)
            if position:  # only the first one waits
                shared = {k: v for k, v in shared.items() if k not in ("countdown", "eta")}
            _inherit(task, shared, errbacks)
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

    def _partial(
        self, tasks: list[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
    ) -> list[Any]:
        return [signature(each, app=self._app).clone(args, kwargs) for each in tasks]

    def add_to(self, plan: Plan, before: Before) -> Before:
        ends: list[Before] = []
        for task in self.tasks:
            _inherit(task, self._shared(SHARED), listed(self.options.get("link_error")))
            for callback in listed(self.options.get("link")):
                task.link(callback)
            ends.append(task.add_to(plan, before))
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

    @property
    def body(self) -> Signature:
        """The task that gets the results."""
        return signature(self["kwargs"]["body"], app=self._app)

    @property
    def tasks(self) -> Signature:
        """The header."""
        return signature(self["kwargs"]["header"], app=self._app)

    def __repr__(self) -> str:
        return f"chord({self.tasks!r}, {self['kwargs']['body']!r})"

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
            same["kwargs"]["header"] = self.tasks.clone(args, kwargs)
        return same

    def add_to(self, plan: Plan, before: Before) -> Before:
        shared = {name: self.options[name] for name in SHARED if name in self.options}
        header, body = self.tasks, self.body
        _inherit(header, shared, [])
        errbacks = listed(self.options.get("link_error"))
        _inherit(body, {k: v for k, v in shared.items() if k not in ("countdown", "eta")}, errbacks)
        for callback in listed(self.options.get("link")):
            body.link(callback)
        if self.id:
            body.set(task_id=self.id)
        return body.add_to(plan, header.add_to(plan, before))


def _inherit(task: Signature, shared: Mapping[str, Any], errbacks: Iterable[Any]) -> None:
    task["options"] = {**shared, **task["options"]}
    for errback in errbacks:
        task.link_error(errback)


def signature(value: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Signature:
    """Return a signature of a name, a task, or the map that a signature became as JSON."""
    app = options.pop("app", None)
    if isinstance(value, Signature) and args is None and kwargs is None and not options:
        return value
    if isinstance(value, Mapping):
        made = _KINDS.get(value.get("subtask_type") or "", Signature)
        found: Signature = made(value, app=app)
        return found
    immutable = options.pop("immutable", False)
    return Signature(value, args, kwargs, options, app=app, immutable=immutable)


subtask = maybe_signature = signature
_KINDS: dict[str, Any] = {"chain": chain, "group": group, "chord": chord}


def copied(value: Any) -> Any:
    """Return a copy of maps and lists, however deep; other values are shared, such as those of
    their subclasses."""
    if isinstance(value, Signature) or type(value) is dict:
        return {name: copied(each) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)([copied(each) for each in value])
    return value


def listed(given: Any) -> list[Any]:
    """Return one value or a list of values as a list."""
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple) else [given]
