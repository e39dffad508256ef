"""A lake: one folder with all tables and the identity of the lake."""

from __future__ import annotations

import uuid
from pathlib import Path

from fairlead.data_folder import check_folder
from fairlead.errors import ConfigurationError
from fairlead.pipeline.extra import need
from fairlead.pipeline.lake import durable
from fairlead.pipeline.lake.table import LakeTable
from fairlead.pipeline.schema import Table
from fairlead.urls import shown_url

_IDENTITY = "_lake"


class Lake:
    """A lake in a folder of a local or POSIX file system, created if missing."""

    def __init__(self, root: str | Path) -> None:
        """Raise ConfigurationError for the URL of an object store, or a folder that cannot be
        used."""
        need("pyarrow")
        text = str(root)
        if "://" in text and not text.startswith("file://"):
            raise ConfigurationError(
                f"lake {shown_url(text)}: Parquet tables need a local or POSIX file system; on an"
                " object store use --catalog (Iceberg)"
            )
        self.root = Path(text.removeprefix("file://")).absolute()
        try:
            durable.folder(self.root)
            check_folder("lake", self.root / _IDENTITY)
        except OSError as error:
            raise ConfigurationError(
                f"lake {self.root}: {error.strerror}; give a folder that can be written"
            ) from error

    def table(self, table: Table) -> LakeTable:
        """Return a table of the lake."""
        return LakeTable(self.root, table)

    @property
    def identity(self) -> str:
        """Identity of the lake, which survives a move of its folder. Raises ConfigurationError if
        the folder cannot be written."""
        path = self.root / _IDENTITY
        if not path.exists():
            try:
                durable.create(path, uuid.uuid4().hex.encode())
            except OSError as error:
                raise ConfigurationError(
                    f"lake {self.root}: {error.strerror}; give a folder that can be written, on a"
                    " file system with hard links"
                ) from error
        return path.read_text()

    @property
    def reader(self) -> str:
        """Name of the lake as a reader of stores."""
        return f"lake {self.identity}"
