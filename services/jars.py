"""Jars that Maven fetches once into the user's cache."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from services import MissingProgram
from services.java import INSTALL


@dataclass(frozen=True)
class Jars:
    """The jars that `maven/<name>-pom.xml` lists. `title` is their name in messages."""

    name: str
    version: str
    title: str

    @property
    def folder(self) -> Path:
        """Folder of the jars; missing before they are fetched."""
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(caches) / "fairlead" / f"{self.name}-{self.version}"

    def require(self) -> None:
        """Raise MissingProgram if both the jars and Maven, which fetches them, are missing."""
        if not self.folder.is_dir() and shutil.which("mvn") is None:
            raise MissingProgram(f"Maven, which fetches {self.title}, is missing: {INSTALL}")

    def fetch(self) -> Path:
        """Fetch the jars if they are missing, and return their folder.

        Raise MissingProgram, or RuntimeError with the end of Maven's output.
        """
        self.require()
        folder = self.folder
        if folder.is_dir():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Filled under another name and then renamed, so that the folder is always complete.
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=folder.parent) as temporary:
            jars = Path(temporary) / "jars"
            self._copy(jars)
            # Renaming fails if another process was faster; its jars are the same.
            with contextlib.suppress(OSError):
                jars.rename(folder)
        if not folder.is_dir():
            raise RuntimeError(f"the jars of {self.title} could not be moved to {folder}")
        return folder

    def _copy(self, folder: Path) -> None:
        pom = Path(__file__).parent / "maven" / f"{self.name}-pom.xml"
        maven = subprocess.run(
            [
                "mvn",
                "-q",
                "-B",
                "-f",
                pom,
                "dependency:copy-dependencies",
                "-DincludeScope=runtime",
                f"-DoutputDirectory={folder}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if maven.returncode:
            output = maven.stdout.decode(errors="replace")[-3000:]
            raise RuntimeError(f"Maven could not fetch {self.title}:\n{output}")
