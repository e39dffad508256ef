"""What a client of Redis must be like, whichever of the two queues uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from fairlead.errors import ConfigurationError

MOST_CONNECTIONS = 10_000
"""A reader that waits holds a connection."""

KNOWN = "redis://[user:password@]host[:6379][/0], rediss:// or unix://"


def check_url(url: str) -> None:
    """Raises ConfigurationError, without the password in its text."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if scheme not in ("redis", "rediss", "unix"):
        raise ConfigurationError(f"no URL of Redis: use {KNOWN}")


def refuse_text(settings: Mapping[str, Any]) -> None:
    """A client that decodes its answers cannot give bytes. Raises ConfigurationError."""
    if settings.get("decode_responses"):
        raise ConfigurationError("values are bytes: give a client without decode_responses=True")
