"""Files of an Iceberg table that are on disk when they are closed, also after a power cut."""

from __future__ import annotations

import io
import os
from pathlib import Path

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from fairlead.pipeline import durable


class DurableFileIO(PyArrowFileIO):
    """Files of PyArrow; those in a folder of this machine are flushed when they are closed."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write."""
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return _DurableFile(location, path, self.fs_by_scheme(scheme, netloc))


class _DurableFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        durable.folder(Path(self._path).parent)
        return _FlushedFile(io.FileIO(self._path, "w" if overwrite else "x"))


class _FlushedFile(io.BufferedWriter):
    def close(self) -> None:
        if not self.closed:
            self.flush()
            os.fsync(self.fileno())
            durable.sync(Path(str(self.name)).parent)
        super().close()
