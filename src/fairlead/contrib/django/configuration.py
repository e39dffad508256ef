"""The setting FAIRLEAD of a Django project."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from fairlead.core import values
from fairlead.errors import ConfigurationError

MOST_URL_BYTES = 16_384


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Values of the setting FAIRLEAD, a map; each has a default."""

    database: str = "default"
    """DATABASE: entry of DATABASES that holds the tasks."""
    modules: tuple[str, ...] = ("tasks",)
    """MODULES: modules that a worker imports. A name without a dot is looked for in every installed
    application."""
    url: str | None = field(default=None, repr=False)
    """URL: replaces the URL that is made from DATABASES, for example to reach the server around a
    pooler. Both URLs lead to the same database."""
    mask: str | None = None
    """MASK: path of the function of a task's name and its arguments that returns what the admin and
    the console may show."""
    app: dict[str, Any] = field(default_factory=dict)
    """APP: further options of `fairlead.App` by name, such as `lake`."""

    @property
    def mask_function(self) -> Callable[[str, Any], Any] | None:
        """Return the function at `mask`. Raise ConfigurationError if there is none."""
        if self.mask is None:
            return None
        try:
            function: Callable[[str, Any], Any] = import_string(self.mask)
        except ImportError as error:
            raise ConfigurationError(f"FAIRLEAD['MASK']: {error}") from error
        return function

    @classmethod
    @cache
    def load(cls) -> Configuration:
        """Return the configuration in force, read once. Raise ConfigurationError for an unknown
        name or a wrong value."""
        given = getattr(settings, "FAIRLEAD", {})
        if not isinstance(given, dict):
            raise ConfigurationError(f"FAIRLEAD {values.brief(given)}: use a map")
        known = {name.upper(): name for name in cls.__dataclass_fields__}
        if unknown := set(given) - set(known):
            raise ConfigurationError(
                f"FAIRLEAD: unknown name {values.brief(min(map(str, unknown)))}; known:"
                f" {', '.join(known)}"
            )
        found = {known[name]: value for name, value in given.items()}
        if "modules" in found:
            modules = values.many("FAIRLEAD['MODULES']", found["modules"])
            found["modules"] = tuple(values.text("FAIRLEAD['MODULES']", each) for each in modules)
        values.text("FAIRLEAD['DATABASE']", found.get("database", "default"))
        if found.get("url") is not None:
            values.text("FAIRLEAD['URL']", found["url"], MOST_URL_BYTES)
        if found.get("mask") is not None:
            values.text("FAIRLEAD['MASK']", found["mask"])
        if not isinstance(found.get("app", {}), dict):
            raise ConfigurationError("FAIRLEAD['APP']: use a map of options of fairlead.App")
        return cls(**found)
