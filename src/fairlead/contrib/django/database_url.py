"""The URL of a database in Django's settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fairlead.errors import ConfigurationError
from fairlead.urls import query_of

_OF_DJANGO = frozenset(
    {
        "assume_role",
        "client_encoding",
        "context",
        "cursor_factory",
        "isolation_level",
        "pool",
        "prepare_threshold",
        "server_side_binding",
    }
)
"""OPTIONS of PostgreSQL that Django reads itself, or that are about its own connections only."""

SUPPORTED = ("sqlite", "postgresql")
"""Vendors of databases that can hold tasks."""


def url_of(alias: str, vendor: str, settings: Mapping[str, Any]) -> str:
    """Return the URL of the database that these settings describe (an entry of DATABASES). Raise
    ConfigurationError for a database that cannot hold tasks."""
    if vendor == "sqlite":
        if is_in_memory(vendor, settings):
            raise ConfigurationError(
                f"the database {alias!r} is in the memory of this process, where no worker finds"
                " it: give it a file, in tests by DATABASES[...]['TEST']['NAME']"
            )
        path = str(settings["NAME"]).removeprefix("file:").partition("?")[0]
        return f"sqlite:///{quote(str(Path(path).absolute()))}"
    if vendor != "postgresql":
        raise ConfigurationError(
            f"the database {alias!r} is one of {vendor}: tasks live in SQLite or PostgreSQL; name"
            " another entry of DATABASES in FAIRLEAD['DATABASE']"
        )
    return _postgres_url(settings)


def is_in_memory(vendor: str, settings: Mapping[str, Any]) -> bool:
    """Return whether these settings describe a database in the memory of this process."""
    name = str(settings["NAME"])
    return vendor == "sqlite" and (name in ("", ":memory:") or "mode=memory" in name)


def _postgres_url(settings: Mapping[str, Any]) -> str:
    user, password = str(settings.get("USER") or ""), str(settings.get("PASSWORD") or "")
    host, port = str(settings.get("HOST") or ""), str(settings.get("PORT") or "")
    options = {
        name: str(value)
        for name, value in (settings.get("OPTIONS") or {}).items()
        if name not in _OF_DJANGO
    }
    if host.startswith("/"):  # the folder of a socket
        options = {"host": host, **({"port": port} if port else {}), **options}
        host = port = ""
    login = quote(user, safe="")
    if password:
        login += f":{quote(password, safe='')}"
    place = (f"{login}@" if login else "") + host + (f":{port}" if port else "")
    name = quote(str(settings.get("NAME") or ""), safe="")
    return f"postgresql://{place}/{name}{'?' if options else ''}{query_of(options)}"
