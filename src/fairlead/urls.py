"""URLs: one way to split them, to show them without secrets, and to read hosts and parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from fairlead.errors import ConfigurationError

PERCENT_CODES = (
    "write special characters of a user, password or parameter as percent codes (%40 for @, %2F for"
    " /, %3F for ?, %23 for #, %26 for &)"
)

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::([0-9]{1,5}))?")
_SHOWN_PATH = re.compile(r"[\w./~+, -]*")
"""Path that has no sign by which a part of a password could be in it."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S*")
_LONGEST_SHOWN = 300
"""Maximum characters of a URL in an error."""
_SHOWN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,40}")
_SECRET = re.compile(r"pass|secret|token|key", re.IGNORECASE)
"""Parameters whose value, if it has an unescaped &, goes on in the next parameter."""


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL. Raise ConfigurationError, without secrets, if it cannot be read,
    or if a special character of a password divides it at a wrong place."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigurationError(
            f"a URL cannot be read: {PERCENT_CODES}, and an IPv6 address in brackets ([::1])"
        ) from None
    login, _, _ = parts.netloc.rpartition("@")
    if "#" in url or "@" in login or (parts.netloc and "@" in f"{parts.path}?{parts.query}"):
        # Otherwise the end of a password would count as a host, a path or a parameter.
        raise ConfigurationError(
            f"URL {shown_url(url)} has an @ or # that ends no login: {PERCENT_CODES}"
        )
    return parts


def file_of(url: str) -> Path | None:
    """Return the absolute path of a database of SQLite; None for another store. Raise
    ConfigurationError as `split_url` does."""
    parts = split_url(url)
    path = Path(unquote(parts.path).removeprefix("/"))
    return path.resolve() if parts.scheme == "sqlite" else None


def shown_url(url: str) -> str:
    """Return the URL for people: scheme, hosts and path, without user, password and parameters. If
    a part of a password may be in hosts or path, leave them out too."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "..."
    hosts = parts.netloc.rpartition("@")[2]
    scheme = f"{parts.scheme}://" if "://" in url else ""
    is_plain = (
        "@" not in f"{parts.path}{parts.query}{parts.fragment}"
        and (scheme or not parts.scheme)
        and (not hosts or all(map(_HOST.fullmatch, hosts.split(","))))
        and _SHOWN_PATH.fullmatch(unquote(parts.path))
    )
    shown = f"{scheme}{hosts}{parts.path}" if is_plain else f"{scheme}..."
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[: _LONGEST_SHOWN - 3]}..."


def hide_urls(text: str) -> str:
    """Return the text up to its first URL, which is as `shown_url` shows it. What follows is left
    out, because a URL with a space does not end there."""
    match = _URL.search(text)
    if match is None:
        return text
    return text[: match.start()] + shown_url(match[0].rstrip(".,;:)'\""))


def hosts_of(where: str, hosts: str, port: int) -> list[tuple[str, int]]:
    """Return the hosts and ports of `host[:port],host[:port]`; `port` is the default, and an IPv6
    address stands in brackets, which are not returned.

    Raise ConfigurationError, whose text begins with `where`, if one cannot be read. The text does
    not quote it, because it may be a user with a password.
    """
    found = []
    for number, one in enumerate(hosts.split(","), 1):
        match = _HOST.fullmatch(one)
        of_one = int(match[2] or port) if match else 0
        if match is None or not 0 < of_one < 65536:
            raise ConfigurationError(
                f"{where}: number {number} is no host; use host:{port} with a port of 1 to 65535,"
                f" and write an IPv6 address in brackets: [::1]:{port}"
            )
        found.append((match[1].strip("[]"), of_one))
    return found


def parameters_of(
    where: str,
    parts: SplitResult,
    known: Collection[str],
    *,
    is_known: Callable[[str], bool] = lambda name: False,
    cures: Mapping[str, str] | None = None,
    otherwise: str = "",
) -> dict[str, str]:
    """Return the parameters after the question mark; of one that is given twice, the last value. A
    plus sign is a plus sign.

    `is_known`: accepts further names. `cures`: what to do about names that users bring from
    elsewhere. `otherwise`: what to do about a name that is near no known one; by default, use a
    known one.

    Raise ConfigurationError, whose text begins with `where`, for a parameter that is not known. The
    text names it and the nearest known one, unless it may be a part of a password.
    """
    pairs = parse_qsl(parts.query.replace("+", "%2B"), keep_blank_values=True)
    follows_secret = False
    for name, _ in pairs:
        if name not in known and not is_known(name):
            if "@" in parts.query or follows_secret or not _SHOWN_NAME.fullmatch(name):
                raise ConfigurationError(f"{where}: a parameter cannot be read: {PERCENT_CODES}")
            near = get_close_matches(name.lower(), known, 1)
            cure = (cures or {}).get(name) or (f"did you mean {near[0]}?" if near else otherwise)
            cure = cure or f"use {', '.join(sorted(known))}"
            raise ConfigurationError(f"{where}: unknown parameter {name}; {cure}")
        follows_secret = follows_secret or bool(_SECRET.search(name))
    return dict(pairs)


def query_of(parameters: Mapping[str, str]) -> str:
    """Return the part of a URL after the question mark. Only percent codes escape, since not all
    readers take a plus sign for a space."""
    return urlencode(parameters, quote_via=quote)
