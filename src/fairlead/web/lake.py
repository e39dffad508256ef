"""The history of the lake for the console. The lake is reached by an entry point, because nothing
below the pipeline imports the pipeline."""

from __future__ import annotations

import threading
from importlib import metadata
from typing import Any

from fairlead.clock import MICROS, to_micros
from fairlead.core.values import instant
from fairlead.errors import NotSupported
from fairlead.operate.caller import Caller
from fairlead.ports.lake_history import GROUP, Extent, LakeHistory, Question
from fairlead.web.inputs import BadInput

DEFAULT_LAKE = "lake"
"""Folder of a lake that nobody has named, as for `fairlead pipeline`."""


class Lake:
    """A lake that may not be there yet. Thread-safe."""

    def __init__(self, folder: str, catalog: str | None = None) -> None:
        self.folder = folder
        self._catalog = catalog
        self._lock = threading.Lock()
        self._opened: LakeHistory | None = None

    def history(self) -> LakeHistory:
        """Return the history; open it at the first call that finds a lake. Raise ConfigurationError
        if there is no lake, and NotSupported without the extra `web`."""
        with self._lock:
            if self._opened is None:
                points = list(metadata.entry_points(group=GROUP))
                if not points:
                    raise NotSupported("nothing reads lakes here: install fairlead[web]")
                try:
                    self._opened = points[0].load()(self.folder, self._catalog)
                except ImportError as error:
                    raise NotSupported(
                        f"the history needs {error.name}: install fairlead[web]"
                    ) from error
            return self._opened


def question_of(
    caller: Caller,
    extent: Extent | None,
    *,
    tenant: str | None = None,
    since: str | None = None,
    until: str | None = None,
    hours: int = 0,
    **parts: Any,
) -> Question:
    """Return what is asked of a history with this extent: by default all of it, or its last hours.
    Raise BadInput, and UnknownTask for a tenant that the viewer may not see."""
    scope = caller.tenants
    if tenant is not None:
        scope = frozenset({caller.tenant_named(tenant)})
    asked = {
        name: to_micros(instant(name, at, BadInput))
        for name, at in (("since", since), ("until", until))
        if at is not None
    }
    ends: dict[str, Any] = {}
    if extent is not None:
        begin = max(extent.since, extent.until - hours * 3600 * MICROS) if hours else extent.since
        ends["since"] = max(extent.since, asked.get("since", begin))
        ends["until"] = min(extent.until, asked.get("until", extent.until))
        if ends["since"] >= ends["until"]:
            raise BadInput("the lake has nothing between since and until: choose another period")
    return Question(**ends, **parts, tenants=scope)
