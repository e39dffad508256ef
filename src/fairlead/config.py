"""Configuration: arguments of the code or the command line, then FAIRLEAD_* in the environment,
then a file."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead.errors import ConfigurationError

PAYLOAD_LIMIT = 1 << 20
"""Maximum number of bytes of JSON that the arguments of one task may have; an application may set
another limit."""

RESULT_LIMIT = 1 << 20
"""Maximum number of bytes of JSON of a result that is kept; an application may set another
limit."""

CHECKPOINT_LIMIT = 1 << 16
"""Maximum number of bytes of JSON of a checkpoint; an application may set another limit."""

_PARTS = ("channel", "coordinator", "backlog", "log", "schedule")
_KEYS = ("url", *_PARTS, "lake", "catalog")

SAME_AS_STORE = ("database", "database://")
"""URLs that mean the server of the task store itself."""


@dataclass(frozen=True)
class Settings:
    """URLs of an application, and its lake."""

    url: str = field(repr=False)
    """URL of the task store. Without one, the URL of the schedule, if the log, the schedule and the
    coordinator have URLs: the application then has ordered queues only."""
    channel: str | None = field(default=None, repr=False)
    coordinator: str | None = field(default=None, repr=False)
    backlog: str | None = field(default=None, repr=False)
    log: str | None = field(default=None, repr=False)
    schedule: str | None = field(default=None, repr=False)
    lake: str | None = None
    """Folder of the lake, or its URL on an object store."""
    catalog: str | None = field(default=None, repr=False)
    """URL of the lake's catalog."""

    @property
    def parts(self) -> dict[str, str]:
        """URLs of adapters outside the server of the task store, by the name of the setting."""
        named = {name: getattr(self, name) for name in _PARTS}
        return {name: url for name, url in named.items() if url is not None}

    @classmethod
    def load(cls, folder: Path | None = None, **given: str | None) -> Settings:
        """Return the settings in force in `folder` (the current one by default). Raises
        ConfigurationError if no URL is set or a file cannot be read."""
        found = _found(folder, given)
        if not found["url"]:
            raise ConfigurationError(
                "no URL says where tasks live: pass App('sqlite:///tasks.db') or --url"
                " sqlite:///tasks.db, set FAIRLEAD_URL, or write url = '...' into fairlead.toml or"
                " [tool.fairlead] of pyproject.toml; ordered queues alone need log, schedule and"
                " coordinator instead"
            )
        return cls(**found)  # type: ignore[arg-type]


def url_of(given: str | None = None, folder: Path | None = None) -> str | None:
    """Return the URL of the task store, as in `Settings`, if one is set; `given` comes first.
    Raises ConfigurationError for a file that cannot be read."""
    return _found(folder, {"url": given})["url"] or None


def lake_of(given: str | None = None, folder: Path | None = None) -> str | None:
    """Return the folder or URL of the lake, if one is set; `given` comes first, and "" means no
    lake. Raises ConfigurationError for a file that cannot be read."""
    if given == "":
        return None
    return _found(folder, {"lake": given})["lake"]


def catalog_of(given: str | None = None, folder: Path | None = None) -> str | None:
    """Return the URL of the lake's catalog, if one is set; `given` comes first. Raises
    ConfigurationError for a file that cannot be read."""
    return _found(folder, {"catalog": given})["catalog"]


def _found(folder: Path | None, given: Mapping[str, str | None]) -> dict[str, str | None]:
    from_file = _from_files(folder or Path())
    found = {
        key: given.get(key) or os.environ.get(f"FAIRLEAD_{key.upper()}") or from_file.get(key)
        for key in _KEYS
    }
    settings = {key: None if value is None else str(value) for key, value in found.items()}
    own = (settings[part] for part in ("log", "schedule", "coordinator"))
    if not settings["url"] and all(url and url not in SAME_AS_STORE for url in own):
        settings["url"] = settings["schedule"]
    return settings


def _from_files(folder: Path) -> dict[str, Any]:
    for name, section in (("fairlead.toml", ()), ("pyproject.toml", ("tool", "fairlead"))):
        path = folder / name
        if not os.path.isfile(path):  # also one that this user may not reach
            continue
        try:
            table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{path}: {error}") from error
        for key in section:
            table = table.get(key, {})
        unknown = set(table) - set(_KEYS)
        if unknown:
            raise ConfigurationError(
                f"{path}: unknown setting {', '.join(sorted(unknown))}; known: {', '.join(_KEYS)}"
            )
        if table:
            return dict(table)
    return {}
