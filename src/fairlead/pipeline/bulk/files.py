"""Files of a submission: which files a path names, and a digest of their content."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from fairlead.errors import ConfigurationError

FORMATS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}


class DataFile(NamedTuple):
    """A file with rows."""

    path: str
    name: str
    """Name relative to the folder of the submission."""
    partition: tuple[tuple[str, str | None], ...]
    """Columns that the names of folders give, as `day=2026-01-31` does, with their texts."""


def data_files(path: Path) -> list[DataFile]:
    """Return the file, or the files of the folder, in the order of their relative names. Spark also
    skips the names that begin with `.` or `_`. Raise ConfigurationError without any file."""
    if not path.is_dir():
        return [DataFile(str(path.absolute()), path.name, ())]
    found = []
    for file in sorted(path.rglob("*")):
        parts = file.relative_to(path).parts
        if file.is_file() and not any(map(_is_hidden, parts)):
            found.append(DataFile(str(file.absolute()), "/".join(parts), _partition(parts[:-1])))
    if not found:
        raise ConfigurationError(f"{path}: no file in this folder")
    return found


def format_of(path: Path, files: Sequence[DataFile]) -> str:
    """Return the format of all files. Raise ConfigurationError for an unknown suffix, or for
    several formats in one folder."""
    formats = set()
    for file in files:
        suffix = Path(file.name).suffix.lower()
        if suffix not in FORMATS:
            raise ConfigurationError(
                f"{file.path}: unknown kind of file; known suffixes: {', '.join(sorted(FORMATS))}"
            )
        formats.add(FORMATS[suffix])
    if len(formats) > 1:
        raise ConfigurationError(
            f"{path}: files of several formats ({', '.join(sorted(formats))}); submit each format"
            " on its own"
        )
    return formats.pop()


def digest_of(files: Sequence[DataFile], options: object) -> str:
    """Return a digest of the bytes of the files, of the columns that their folders give, and of the
    options that shape the tasks. The names of the files do not count: a copy, a link or a renamed
    file has the same digest."""
    contents = sorted((_sha256(file.path), repr(file.partition)) for file in files)
    return hashlib.sha256(repr((contents, options)).encode()).hexdigest()


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _partition(folders: Sequence[str]) -> tuple[tuple[str, str | None], ...]:
    pairs = [folder.partition("=") for folder in folders if "=" in folder]
    return tuple(
        (unquote(name), None if text == "__HIVE_DEFAULT_PARTITION__" else unquote(text))
        for name, _, text in pairs
    )
