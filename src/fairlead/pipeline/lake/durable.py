"""Files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path


def write(path: Path, fill: Callable[[Path], object]) -> None:
    """Make or replace `path`: `fill` writes it aside, then it is flushed to disk and renamed."""
    aside = _aside(path)
    try:
        fill(aside)
        sync(aside)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    sync(path.parent)


def create(path: Path, content: bytes) -> bool:
    """Make `path` with this content; False when it is there already, whoever was first. Nobody ever
    sees half of it. Raises OSError where the file system knows no hard links."""
    aside = _aside(path)
    try:
        aside.write_bytes(content)
        sync(aside)
        try:
            os.link(aside, path)
        except FileExistsError:
            # NFS repeats a request whose answer was lost, and then finds the link that it has made
            # itself.
            if aside.stat().st_nlink == 1:
                return False
    finally:
        aside.unlink(missing_ok=True)
    sync(path.parent)
    return True


def folder(path: Path) -> Path:
    """Make the folder and those above it, each name flushed to disk."""
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


def _aside(path: Path) -> Path:
    # A dot in front: readers of folders, Spark's too, pass such files over.
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")
