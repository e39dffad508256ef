"""Arguments of a handler as data: typed by its annotations, sent as JSON, checked when submitted
and when run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from fairlead.core import values
from fairlead.declare.json_types import JsonType, hints
from fairlead.errors import ConfigurationError, InvalidTask
from fairlead.model.reading import json_reader

_KINDS_REFUSED = {
    inspect.Parameter.VAR_POSITIONAL: "*args",
    inspect.Parameter.VAR_KEYWORD: "**kwargs",
}


class Arguments:
    """Encodes and decodes the arguments of one handler, by its annotations. A parameter without an
    annotation takes the values that JSON does not change."""

    def __init__(
        self, function: Callable[..., Any], task_name: str, injected: frozenset[str] = frozenset()
    ) -> None:
        """`injected`: parameters that the engine supplies when it runs the handler. Raises
        ConfigurationError if a parameter cannot be encoded as JSON."""
        self.task_name = task_name
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"task {task_name!r}: use a Python function: {error}"
            ) from error
        parameters = [p for p in signature.parameters.values() if p.name not in injected]
        for parameter in parameters:
            if parameter.kind in _KINDS_REFUSED:
                raise ConfigurationError(
                    f"task {task_name!r}: {_KINDS_REFUSED[parameter.kind]} has no type to check;"
                    " name each argument"
                )
        self._signature = signature.replace(parameters=parameters)
        try:
            annotations = hints(function, *(each.name for each in parameters))
            types = {each.name: annotations.get(each.name, Any) for each in parameters}
            run_with = [_field(each, types[each.name]) for each in parameters]
            # Only arguments that were given are sent: the worker that runs the task knows the
            # defaults, and perhaps other ones.
            given = [
                (each.name, types[each.name])
                if each.default is inspect.Parameter.empty
                else (each.name, types[each.name] | msgspec.UnsetType, msgspec.UNSET)
                for each in parameters
            ]
            self._type, self._given = (
                msgspec.defstruct(
                    f"{task_name} arguments",
                    fields,
                    forbid_unknown_fields=True,
                    kw_only=True,
                    gc=False,
                )
                for fields in (run_with, given)
            )
            sent = [JsonType(name, types[name]) for name in types]
            self._open = [each for each in sent if each.is_open]
            self._has_objects = any(each.has_objects for each in sent)
            self._read = json_reader(self._type)
        except (TypeError, NameError) as error:
            raise ConfigurationError(
                f"task {task_name!r}: its arguments cannot be encoded as JSON: {error}"
            ) from error
        self.names = tuple(p.name for p in parameters)
        self._positional = (
            all(p.kind is not inspect.Parameter.KEYWORD_ONLY for p in parameters) and not injected
        )

    def encode(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, strict: bool = True
    ) -> bytes:
        """Return the arguments as JSON; with `strict=False`, also take texts such as `7` for a
        number. Raises InvalidTask naming what is missing, unknown or of the wrong type."""
        try:
            if args:
                kwargs = dict(self._signature.bind(*args, **kwargs).arguments)
            given = msgspec.convert(kwargs, self._given, strict=strict)
            for each in self._open:
                each.check(getattr(given, each.name))
            encoded = values.to_json(given)
            if self._has_objects:  # msgspec has not checked their fields
                self._read(encoded)
        except Exception as error:  # encoding runs the user's code
            names = ", ".join(self.names)
            raise InvalidTask(f"task {self.task_name!r}: {error}; arguments: {names}") from error
        return encoded

    def decode(self, encoded: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and keyword arguments of the handler. Raises InvalidTask for bytes
        that do not fit it."""
        try:
            struct = self._read(encoded)
        except msgspec.DecodeError as error:
            raise InvalidTask(f"payload does not fit task {self.task_name!r}: {error}") from error
        if self._positional:
            return msgspec.structs.astuple(struct), {}
        return (), {name: getattr(struct, name) for name in self.names}


def _field(parameter: inspect.Parameter, annotation: Any) -> Any:
    default = parameter.default
    if default is inspect.Parameter.empty:
        return (parameter.name, annotation)
    if isinstance(default, list | dict | set):
        return (parameter.name, annotation, msgspec.field(default_factory=lambda: default.copy()))
    return (parameter.name, annotation, default)
