"""The context that all screens of one console share: settings, application, templates, reads."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from jinja2 import Environment
from starlette.requests import Request

from fairlead.app import App
from fairlead.operate.masking import Mask
from fairlead.web.access import Access
from fairlead.web.lake import Lake
from fairlead.web.live import LiveHub
from fairlead.web.sessions import Signer
from fairlead.web.waiting import ReadLoop

if TYPE_CHECKING:
    from fairlead.sharded import SyncShardedQueue
    from fairlead.web.routing import Navigation, ScreenRoute

T = TypeVar("T")

Authorize = Callable[[Request], Access | Awaitable[Access]]
"""Function of the host application: the access of the viewer who sends a request."""
TraceUrl = Callable[[str], str | None]
"""Function that gets the id of a trace and returns the address of its page; None if it has none."""


@dataclass(frozen=True, kw_only=True)
class ConsoleSettings:
    """Settings of one console, as `console()` takes them."""

    title: str
    authorize: Authorize | None
    token: str
    """Token of the login; not used with `authorize`."""
    is_token_given: bool
    """Whether a person chose the token; without it, the console serves this machine only."""
    hosts: frozenset[str] | None
    """Names that the header Host may have, without port; None is any."""
    mask: Mask | None
    trace_url: TraceUrl | None
    read_only: bool
    frame_ancestors: str
    live: bool
    """Whether open pages follow changes."""


MOST_RESULTS = 256
"""Greatest number of results that viewers share."""


class SharedReads:
    """Results of reads that viewers share for some seconds, so that many viewers of one screen cost
    as much as one. Thread-safe."""

    def __init__(self, most: int = MOST_RESULTS) -> None:
        """`most`: greatest number of results."""
        self._most = most
        self._clears = 0
        self._lock = threading.Lock()
        self._found: dict[Hashable, tuple[float, Any]] = {}
        self._reading: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable, read: Callable[[], T], seconds: float) -> T:
        """Return the result of a read: one that is younger than `seconds`, or a new one. Viewers
        that ask meanwhile wait for it."""
        with self._lock:
            one_reader = self._reading.setdefault(key, threading.Lock())
        try:
            with one_reader:
                found = self._found.get(key)
                if found is None or time.monotonic() - found[0] > seconds:
                    clears, at = self._clears, time.monotonic()
                    found = (at, read())
                    self._keep(key, found, clears)
                result: T = found[1]
                return result
        finally:
            with self._lock:
                if not one_reader.locked():
                    self._reading.pop(key, None)

    def clear(self) -> None:
        """Drop all results, after an action that changes them."""
        with self._lock:
            self._clears += 1
            self._found.clear()

    def _keep(self, key: Hashable, found: tuple[float, Any], clears: int) -> None:
        with self._lock:
            if clears != self._clears:
                return  # an action changed something while this was read
            self._found.pop(key, None)
            while len(self._found) >= self._most:
                del self._found[next(iter(self._found))]
            self._found[key] = found


@dataclass(frozen=True, kw_only=True)
class ConsoleParts:
    """Parts that the pages of one console share."""

    app: App
    settings: ConsoleSettings
    signer: Signer
    templates: Environment
    navigation: Sequence[Navigation]
    routes: dict[str, ScreenRoute]
    """Routes by name."""
    live: LiveHub
    lake: Lake
    """History of the lake, opened at the first request."""
    read_loop: ReadLoop
    sharded: Mapping[str, SyncShardedQueue] = field(default_factory=dict)
    """Sharded queues that the console shows, by name."""
    reads: SharedReads = field(default_factory=SharedReads)
