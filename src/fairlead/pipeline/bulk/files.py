"""Files of a submission: which files a path names, and a digest of their content."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from fairlead.errors import ConfigurationError
from fairlead.pipeline.errors import RefusedRows

FORMATS = {
    ".parquet": "parquet",
    ".csv": "csv",
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "json"),
}


class DataFile(NamedTuple):
    """A file with rows."""

    path: str
    name: str
    """Name relative to the folder of the submission."""
    partition: tuple[tuple[str, str | None], ...]
    """Columns that the names of folders give, as `day=2026-01-31` does, with their texts."""
    state: tuple[int, int]
    """Size in bytes and time of the last change in nanoseconds, when the file was listed."""


def data_files(path: Path) -> list[DataFile]:
    """Return the file, or the files of the folder, in the order of their relative names. Spark also
    skips the names that begin with `.` or `_`. Raise ConfigurationError without any file, and for a
    name behind which rows would be left out: a link to a folder, a link to nothing, a pipe, or a
    folder that cannot be read."""
    with _readable(path):
        if not path.is_dir():
            return [_data_file(path, path.name, ())]
        names = sorted(_names(path))
        found = [_data_file(path / name, name.as_posix(), name.parts[:-1]) for name in names]
    if not found:
        raise ConfigurationError(f"{path}: no file in this folder")
    return found


def check_unchanged(file: DataFile) -> None:
    """Raise RefusedRows if the file has changed since it was listed. Call after its last row."""
    with suppress(FileNotFoundError):
        if _state(os.stat(file.path)) == file.state:
            return
    raise RefusedRows(
        f"{file.path}: changed while it was read, and nothing was submitted; repeat the submit when"
        " nothing writes to the file"
    )


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
    with _readable(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _names(path: Path) -> Iterator[Path]:
    """Yield the names of all files in the folder, relative to it."""

    def fail(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(path, onerror=fail):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        for name in folders:
            if (link := Path(folder, name)).is_symlink():
                raise ConfigurationError(
                    f"{link}: a link to a folder; submit that folder on its own"
                )
        yield from (Path(folder, name).relative_to(path) for name in files if not _is_hidden(name))


def _data_file(path: Path, name: str, folders: Sequence[str]) -> DataFile:
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise ConfigurationError(f"{path}: not a regular file")
    return DataFile(str(path.absolute()), name, _partition(folders), _state(found))


def _state(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns


@contextmanager
def _readable(path: Path | str) -> Iterator[None]:
    """Turn an error of the system into a ConfigurationError that names the file."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename or path}: cannot be read: {error.strerror or error}"
        ) from error


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _partition(folders: Sequence[str]) -> tuple[tuple[str, str | None], ...]:
    pairs = [folder.partition("=") for folder in folders if "=" in folder]
    return tuple(
        (unquote(name), None if text == "__HIVE_DEFAULT_PARTITION__" else unquote(text))
        for name, _, text in pairs
    )
