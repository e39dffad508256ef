"""The public names of `fairlead.contrib`, each with its parameters, as lines of text."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

MODULES = (
    "asgi",
    "celery",
    "celery.exceptions",
    "celery.result",
    "celery.schedules",
    "celery.states",
    "celery.utils",
    "celery.utils.log",
    "fastapi",
    "flask",
    "litestar",
    "opentelemetry",
    "prometheus",
    "sqlalchemy",
)
"""Public modules that can be imported without settings of Django."""
DJANGO_MODULES = ("django", "django.backend", "django.console", "django.testing")
"""Public modules that need settings of Django."""


def contrib_surface(modules: tuple[str, ...]) -> list[str]:
    """Return a line for each public name of these modules of `fairlead.contrib`."""
    return [line for name in modules for line in _lines(name)]


def _lines(name: str) -> Iterator[str]:
    module = importlib.import_module(f"fairlead.contrib.{name}")
    for own in _names(module):
        value = getattr(module, own)
        yield f"{name}.{own}{_parameters(value)}"
        if not inspect.isclass(value) or issubclass(value, enum.Enum):
            continue
        for attribute, found in sorted(vars(value).items()):
            if not attribute.startswith("_") and (callable(found) or isinstance(found, property)):
                yield f"{name}.{own}.{attribute}{_parameters(found)}"


def _names(module: ModuleType) -> list[str]:
    """Return the public names of a module: those of `__all__`, else those that it defines."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed)
    defined: set[str] = set()
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined.update(each.id for each in targets if isinstance(each, ast.Name))
    return sorted(
        name
        for name in defined
        if not name.startswith("_") and not isinstance(getattr(module, name), TypeVar | ParamSpec)
    )


def _parameters(value: Any) -> str:
    if inspect.isclass(value) and issubclass(value, BaseException):
        return ""
    try:
        found = inspect.signature(value) if callable(value) else None
    except (TypeError, ValueError):
        return ""
    if found is None:
        return ""
    kinds = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    shown = (kinds.get(each.kind, "") + name for name, each in found.parameters.items())
    return f"({', '.join(shown)})"


if __name__ == "__main__":  # in a process of its own, which may configure Django
    import django
    from django.conf import settings

    settings.configure(
        INSTALLED_APPS=[
            "django.contrib.contenttypes",
            "django.contrib.auth",
            "fairlead.contrib.django",
        ],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "none.db"}},
    )
    django.setup()
    sys.stdout.write("\n".join(contrib_surface(DJANGO_MODULES)) + "\n")
