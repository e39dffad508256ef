"""The application that `MODULE:APP` names."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from fairlead.app import App
from fairlead.core import values
from fairlead.declare.current import enable_loggers
from fairlead.errors import ConfigurationError, FairleadError

_REFERENCE = re.compile(r"[\w.]+(:[\w.]*)?")
_IMPORTERS = (__file__, str(Path(importlib.__file__).parent), "<frozen importlib")
"""Beginnings of the files whose frames import a module."""


def load(reference: str) -> App:
    """Import and return the App named `MODULE:APP`, also from the current folder; `:app` is the
    default. Raise ConfigurationError."""
    if not _REFERENCE.fullmatch(reference):  # not quoted, because it may be a URL with a password
        raise ConfigurationError(
            "give MODULE:APP, such as shop:app; the URL of the store is in the code of the App, in"
            " FAIRLEAD_URL or in fairlead.toml"
        )
    module = _imported(reference)
    enable_loggers()
    attribute = reference.partition(":")[2]
    found = app = getattr(module, attribute or "app", None)
    if not isinstance(app, App):
        app = getattr(app, "fairlead", None)  # an object that holds its App, such as a `Celery`
    if not isinstance(app, App):
        names = (
            ", ".join(name for name, value in vars(module).items() if isinstance(value, App))
            or "none"
        )
        cure = (
            f"; it is a function: keep the App that it returns, as in app = {attribute}()"
            if inspect.isfunction(found)
            else ""
        )
        raise ConfigurationError(
            f"{module.__name__} has no App named {attribute or 'app'!r}; it has {names}{cure}"
        )
    return app


def load_value(reference: str) -> Any:
    """Import and return what `MODULE:NAME` names, also from the current folder. Raise
    ConfigurationError."""
    attribute = reference.partition(":")[2]
    if not _REFERENCE.fullmatch(reference) or not attribute:
        raise ConfigurationError(f"{values.brief(reference)}: give MODULE:NAME")
    module = _imported(reference)
    if not hasattr(module, attribute):
        raise ConfigurationError(f"{module.__name__} has nothing named {attribute!r}")
    return getattr(module, attribute)


def load_function(reference: str) -> Callable[..., Any]:
    """Import and return the function named `MODULE:NAME`, also from the current folder. Raise
    ConfigurationError."""
    function: Callable[..., Any] = load_value(reference)
    if not callable(function):
        raise ConfigurationError(f"{values.brief(reference)} is no function")
    return function


def _imported(reference: str) -> ModuleType:
    """Return the module of a reference, also from the current folder. Raise ConfigurationError; if
    the code of the module fails, with its traceback."""
    module_name = reference.partition(":")[0]
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise ConfigurationError(f"{module_name} cannot be imported: {error}") from error
        raise ConfigurationError(
            f"no module named {module_name!r}; give MODULE:NAME, from the folder that holds it"
        ) from error
    except FairleadError:
        raise
    except Exception as error:
        found = error.__traceback__
        while found is not None and found.tb_frame.f_code.co_filename.startswith(_IMPORTERS):
            found = found.tb_next
        lines = "".join(traceback.format_exception(type(error), error, found))
        raise ConfigurationError(f"{module_name} cannot be imported\n{lines.rstrip()}") from error
