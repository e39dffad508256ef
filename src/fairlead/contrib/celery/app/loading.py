"""Settings and modules that a project names as text."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any


def many(names: Any) -> list[str]:
    """Return one name or several as a list."""
    return [names] if isinstance(names, str) else list(names or ())


def loaded(source: Any) -> Any:
    """Return what a name such as `package.module`, `module:NAME` or `module.NAME` stands for."""
    if not isinstance(source, str):
        return source
    name, _, attribute = source.partition(":")
    try:
        module = sys.modules.get(name) or importlib.import_module(name)
    except ModuleNotFoundError as error:
        outer, _, inner = name.rpartition(".")
        if attribute or not outer or error.name not in (name, outer):
            raise
        return getattr(importlib.import_module(outer), inner)
    return getattr(module, attribute) if attribute else module


def installed() -> list[str]:
    """Return the installed applications of Django; none without Django."""
    if importlib.util.find_spec("django") is None:
        return []
    apps: Any = importlib.import_module("django.apps").apps
    return [config.name for config in apps.get_app_configs()]
