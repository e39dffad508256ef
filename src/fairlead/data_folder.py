"""Folders of data: those in which other users may replace files are refused.

In a folder that everybody may write, another user can put a database, its write-ahead log or a
page of the report in the place of ours, and so give tasks to our workers. With the sticky bit, as
/tmp has it, nobody can replace our files there, but everybody can be first to make them.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from fairlead.errors import ConfigurationError

log = logging.getLogger("fairlead.data_folder")

ALLOW = "FAIRLEAD_ALLOW_SHARED_FOLDER"
"""Variable that, set to 1, turns the refusal into a warning."""

_warned: set[str] = set()


def check_folder(what: str, path: Path, beside: Collection[str] = ()) -> None:
    """Raise ConfigurationError if another user, who is not root, can put something in the place of
    `path`, of a folder above it, or of a file that `beside` names in its folder. Group members may.

    what: kind of data, for the error.
    """
    if not hasattr(os, "geteuid"):
        return  # a system without such permissions
    # Both the name that was given and the file it leads to: either may be replaced.
    for each in dict.fromkeys((path.absolute(), path.resolve())):
        for problem in _problems(each, beside):
            _refuse(what, path, problem)


def _problems(path: Path, beside: Collection[str]) -> Iterator[str]:
    """Yield what another user may do to a path, from its own folder upwards."""
    trusted = (0, os.geteuid())
    entries = [path, *(path.with_name(name) for name in beside)]
    for folder in path.parents:
        try:
            about = folder.stat()
        except OSError:
            about = None  # not there yet, or not ours to see: its use says so
        if about is None or not about.st_mode & stat.S_IWOTH:
            pass
        elif not about.st_mode & stat.S_ISVTX:
            yield f"every user may replace files in {folder}: chmod o-w {folder}"
        elif about.st_uid not in trusted:
            yield f"the owner of {folder} (user {about.st_uid}) may replace files in it"
        else:
            for entry in entries:
                if (owner := _owner(entry)) not in (None, *trusted):
                    yield f"{entry} is of another user ({owner}), and every user may write {folder}"
        entries = [folder]


def _owner(path: Path) -> int | None:
    """Return the user id of the owner of a file, of a link itself; None without a file."""
    try:
        return path.lstat().st_uid
    except OSError:
        return None


def _refuse(what: str, path: Path, problem: str) -> None:
    if os.environ.get(ALLOW) != "1":
        raise ConfigurationError(
            f"{what} {path}: {problem}; or use another folder, or, if no other user of this machine"
            f" is a stranger, set {ALLOW}=1"
        )
    if problem not in _warned:
        _warned.add(problem)
        log.warning("other users may replace data", extra={"path": str(path), "problem": problem})
