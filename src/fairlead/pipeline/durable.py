"""Files that exist completely or not at all, also after a power cut."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path


def write(path: Path, fill: Callable[[Path], object]) -> None:
    """Create or replace `path`: `fill` writes a temporary file, which is flushed to disk and
    renamed."""
    # Begin with a dot: readers of folders, and Spark, skip such files.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        fill(temporary)
        sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def folder(path: Path) -> Path:
    """Create the folder and its parents, each name flushed to disk."""
    if not path.is_dir():
        folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)
    return path


def sync(path: Path) -> None:
    """Flush a file or a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
