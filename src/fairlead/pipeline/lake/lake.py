"""A lake: one folder with all tables and the identity of the lake."""

from __future__ import annotations

import uuid
from pathlib import Path

from fairlead.data_folder import check_folder
from fairlead.errors import ConfigurationError
from fairlead.pipeline import durable
from fairlead.pipeline.extra import need
from fairlead.pipeline.lake.table import LakeTable
from fairlead.pipeline.schema import Table
from fairlead.urls import shown_url

_IDENTITY = "_lake"
HASH_MARK = "_hashed"
"""File with the proof of the secret of a hashed lake."""


class Lake:
    """A lake in a folder of a local or POSIX file system, created if missing."""

    def __init__(self, root: str | Path) -> None:
        """Raise ConfigurationError for the URL of an object store, or a folder that cannot be
        used."""
        need("pyarrow")
        self.root = _folder(root)
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
    def shown(self) -> str:
        """Lake for people."""
        return str(self.root)

    @property
    def hash_proof(self) -> str | None:
        """Proof of the secret by which keys are hashed; None in a lake with clear keys."""
        mark = self.root / HASH_MARK
        return mark.read_text() if mark.exists() else None

    def keep_hash_proof(self, proof: str) -> None:
        """Keep the proof of the secret, unless there is one."""
        durable.create(self.root / HASH_MARK, proof.encode())

    def has_rows(self, table: Table) -> bool:
        """Return whether a table has rows."""
        return self.table(table).manifests.newest().rows > 0

    @property
    def reader(self) -> str:
        """Name of the lake as a reader of stores."""
        return f"lake {self.identity}"


def existing(root: str | Path) -> Path:
    """Return the folder of a lake that is only read, and so not made. Raise ConfigurationError for
    the URL of an object store, a folder that cannot be used, or a folder without a lake."""
    folder = _folder(root)
    check_folder("lake", folder / _IDENTITY)
    try:
        is_lake = any((entry / "_manifest").is_dir() for entry in folder.iterdir())
    except FileNotFoundError:
        is_lake = False
    except OSError as error:
        raise ConfigurationError(
            f"lake {folder}: {error.strerror}; give a folder that can be read"
        ) from error
    if not is_lake:
        raise ConfigurationError(
            f"lake {folder}: there is no lake; `fairlead pipeline ingest` makes one from the store,"
            " and --lake or FAIRLEAD_LAKE names another folder"
        )
    return folder


def _folder(root: str | Path) -> Path:
    text = str(root)
    if "://" in text and not text.startswith("file://"):
        raise ConfigurationError(
            f"lake {shown_url(text)}: Parquet tables need a local or POSIX file system; on an"
            " object store use --catalog (Iceberg)"
        )
    return Path(text.removeprefix("file://")).absolute()
