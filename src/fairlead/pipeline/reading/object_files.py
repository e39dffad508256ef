"""The files of a lake on an object store, as DuckDB opens them: only those that snapshots list,
without a question to the store about any of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fsspec import AbstractFileSystem  # type: ignore[import-untyped]
from pyiceberg.io.pyarrow import PyArrowFileIO

from fairlead.pipeline.reading.snapshots import TableAt

_WRITTEN = datetime.fromtimestamp(0, UTC)


class ObjectFiles(AbstractFileSystem):  # type: ignore[misc]
    """The listed files. Their names and sizes come from the snapshots, and no file ever changes."""

    protocol = "s3"
    cachable = False  # codespell:ignore cachable

    def __init__(self) -> None:
        super().__init__()
        self._tables: dict[str, tuple[PyArrowFileIO, dict[str, int]]] = {}
        """Access and sizes of the files, by table."""

    def replace(self, table: str, at: TableAt) -> None:
        """Replace the listed files of a table."""
        assert isinstance(at.io, PyArrowFileIO)
        self._tables[table] = at.io, {file.path: file.bytes for file in at.files}

    def info(self, path: str, **given: Any) -> dict[str, Any]:
        """Return size and kind of a file. Raise FileNotFoundError for a file that is not listed."""
        return {"name": path, "size": self._listed(path)[1], "type": "file"}

    def glob(self, path: str, **given: Any) -> list[str]:
        """Return the file that a pattern of `engine.patterns` names."""
        name = path
        for sign in "*?[":
            name = name.replace(f"[{sign}]", sign)
        return [name] if self.exists(name) else []

    def open(self, path: str, mode: str = "rb", **given: Any) -> Any:
        """Open a listed file. Raise FileNotFoundError for another one, PermissionError to write."""
        if mode != "rb":
            raise PermissionError(f"{path} is only read")
        io, _ = self._listed(path)
        scheme, netloc, key = io.parse_location(path)
        return io.fs_by_scheme(scheme, netloc).open_input_file(key)

    def modified(self, path: str) -> datetime:
        """Return the same instant for each file."""
        return _WRITTEN

    def _listed(self, path: str) -> tuple[PyArrowFileIO, int]:
        for io, sizes in list(self._tables.values()):
            if path in sizes:
                return io, sizes[path]
        raise FileNotFoundError(f"{path} is no file of the lake")
