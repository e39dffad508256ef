"""Signatures: tasks with arguments and options, to be submitted later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fairlead.contrib.celery import missing
from fairlead.contrib.celery.exceptions import NotRegistered
from fairlead.contrib.celery.plan import Before, Plan

if TYPE_CHECKING:
    from fairlead.contrib.celery.app.base import Celery
    from fairlead.contrib.celery.result import Result


def entry(name: str, doc: str) -> Any:
    """Return a property that is an entry of the map of a signature."""

    def write(sig: Signature, value: Any) -> None:
        sig[name] = value

    return property(lambda sig: sig[name], write, doc=doc)


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
            super().__init__({"kwargs": {}, "options": {}, "immutable": False, **copied(task)})
            self["args"] = tuple(self.get("args") or ())
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

    task = entry("task", "Name of the task.")

    @property
    def name(self) -> str:
        """Name of the task."""
        return str(self.task)

    @property
    def type(self) -> Any:
        """The task itself. Raises NotRegistered."""
        self.app.finalize()
        found = self.app.tasks.get(self.task)
        if found is None:
            raise NotRegistered(f"no task {self.task!r} is registered; import its module")
        return found

    @classmethod
    def from_dict(cls, given: Mapping[str, Any], app: Celery | None = None) -> Signature:
        """Return the signature that a map stands for."""
        return signature(given, app=app)

    args = entry("args", "Positional arguments.")
    kwargs = entry("kwargs", "Arguments by name.")
    options = entry("options", "Options of the submit.")
    immutable = entry(
        "immutable", "Whether the results of the tasks before are left out of its arguments."
    )

    @property
    def id(self) -> str | None:
        """Id that was chosen for the task; None without one."""
        chosen: str | None = self.options.get("task_id")
        return chosen

    def __repr__(self) -> str:
        shown = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        return f"{self.task}({', '.join(shown)})"

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, Signature):
            return NotImplemented
        return KINDS["chain"](self, other, app=self._app)

    __ior__ = __or__

    def __invert__(self) -> Any:
        return self.apply_async().get()

    def __reduce__(self) -> Any:
        return signature, (dict(self),)

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

    def replace(
        self, args: Any = None, kwargs: Any = None, options: Mapping[str, Any] | None = None
    ) -> Signature:
        """Return a copy with other arguments or options in place of its own."""
        same = signature(copied(self), app=self._app)
        given = {"args": args, "kwargs": kwargs, "options": options}
        same.update({name: value for name, value in given.items() if value is not None})
        return same

    def set_immutable(self, immutable: bool) -> None:
        """Set whether the results of the tasks before are left out of its arguments."""
        self["immutable"] = immutable

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
        return self.type(*wanted.args, **wanted.kwargs)

    def _run_here(self, wanted: Signature, throw: bool | None) -> Result:
        throws = self.app.conf.task_eager_propagates if throw is None else throw
        return self.app.run_here(wanted, bool(throws))

    def add_to(self, plan: Plan, before: Before) -> Before:
        """Add the tasks of the signature to a plan, after `before`; return its last ones."""
        node = plan.add(self, before)
        for callback in listed(self.options.get("link")):
            signature(callback, app=self._app).add_to(plan, node)
        return node


def signature(value: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Signature:
    """Return a signature of a name, a task, or the map that a signature became as JSON."""
    app = options.pop("app", None)
    if isinstance(value, Signature) and args is None and kwargs is None and not options:
        return value
    if isinstance(value, Mapping):
        made = KINDS.get(value.get("subtask_type") or "", Signature)
        found: Signature = made(value, app=app)
        return found
    immutable = options.pop("immutable", False)
    return Signature(value, args, kwargs, options, app=app, immutable=immutable)


def maybe_signature(value: Any, app: Celery | None = None, clone: bool = False) -> Any:
    """Return a signature of a map, a signature itself or a copy of it, and any other value."""
    if not isinstance(value, Mapping):
        return value
    found = signature(value, app=app)
    return found.clone() if clone and found is value else found


KINDS: dict[str, Any] = {}
"""Classes of signatures that are made of others, by their type."""


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
