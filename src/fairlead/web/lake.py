"""The history of the lake for the console. The lake is reached by an entry point, because nothing
below the pipeline imports the pipeline."""

from __future__ import annotations

import threading
from importlib import metadata

from fairlead.errors import NotSupported
from fairlead.ports.lake_history import GROUP, LakeHistory

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
