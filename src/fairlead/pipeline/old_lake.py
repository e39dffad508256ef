"""A lake of Fairlead 0.1, only to move it: folders of Parquet files, each listed by the newest
manifest of its table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds

from fairlead.errors import ConfigurationError
from fairlead.model.reading import json_reader
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.schema import SCHEMA_VERSION, Table

_NAME = re.compile(r"^(\d{12})\.json$")


class OldPart(msgspec.Struct, frozen=True):
    """One partition of a table."""

    files: list[str]
    """Paths below the table's folder."""
    rows: int


class OldManifest(msgspec.Struct, frozen=True):
    """Newest manifest of a table."""

    number: int = 0
    schema_version: int = SCHEMA_VERSION
    parts: dict[str, OldPart] = {}
    cursors: dict[str, str] = {}
    erased: list[str] = []
    """Tombstones of erased keys."""
    ledger: list[str] = []
    """Files of erased attempts that `reconcile` still counts."""

    @property
    def files(self) -> list[str]:
        """Files of all partitions, in the same order at each call."""
        return [file for name in sorted(self.parts) for file in self.parts[name].files]

    @property
    def rows(self) -> int:
        """Number of rows of all partitions."""
        return sum(part.rows for part in self.parts.values())


_decode = json_reader(OldManifest)


class OldLake:
    """A lake of 0.1 in a folder."""

    def __init__(self, root: Path) -> None:
        """Raise ConfigurationError if there is none."""
        self.root = root
        if not (root / "_lake").is_file():
            raise ConfigurationError(f"{root}: there is no lake of Fairlead 0.1")

    @property
    def identity(self) -> str:
        """Identity of the lake."""
        return (self.root / "_lake").read_text()

    @property
    def hash_proof(self) -> str | None:
        """Proof of the secret by which keys are hashed; None in a lake with clear keys."""
        mark = self.root / "_hashed"
        return mark.read_text() if mark.exists() else None

    def manifest(self, table: Table) -> OldManifest:
        """Return the newest manifest of a table; an empty one without any. Raise BrokenLake, and
        ConfigurationError when a newer Fairlead wrote it."""
        folder = self.root / table.name / "_manifest"
        names = sorted(path.name for path in folder.glob("*.json") if _NAME.match(path.name))
        if not names:
            return OldManifest()
        path = folder / names[-1]
        try:
            found = _decode(path.read_bytes())
            _check(found, int(path.stem))
        except (OSError, ValueError) as error:  # also that of msgspec
            raise BrokenLake(f"{path} cannot be read: {error}; restore it") from error
        if found.schema_version > SCHEMA_VERSION:
            raise ConfigurationError(
                f"{path} was written under schema version {found.schema_version}; this Fairlead"
                f" knows up to {SCHEMA_VERSION}: upgrade Fairlead"
            )
        return found

    def load(self, table: Table, file: str, columns: Table) -> pa.Table:
        """Return the rows of a file of a table, with the columns of `columns`; missing ones are
        null. Raise BrokenLake for a missing or damaged file."""
        path = self.root / table.name / file
        schema = pa.schema([field.with_nullable(True) for field in columns.arrow()])
        try:
            return ds.dataset(str(path), schema=schema, format="parquet").to_table()
        except (OSError, pa.ArrowInvalid) as error:
            raise BrokenLake(f"{path} cannot be read: {error}; restore it") from error

    def batches(
        self, table: Table, files: list[str], columns: Table, rows: int
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of files, in tables of about `rows` rows, each with the number of files up
        to its end. Raise BrokenLake."""
        found: list[pa.Table] = []
        for number, file in enumerate(files, 1):
            found.append(self.load(table, file, columns))
            if sum(each.num_rows for each in found) >= rows or number == len(files):
                yield number, pa.concat_tables(found)
                found = []


def _check(manifest: OldManifest, number: int) -> None:
    """Raise ValueError for a manifest that leads out of its table."""
    if manifest.number != number:
        raise ValueError(f"it is the manifest {manifest.number}")
    for file in (*manifest.files, *manifest.ledger):
        if file.startswith("/") or ".." in file.split("/") or "\0" in file:
            raise ValueError(f"{file!r} is no path below the table")
