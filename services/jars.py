"""Jars that Maven fetches, once, into this user's cache."""

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
    """The jars that `maven/<name>-pom.xml` lists, in the version it names; `title` is what people
    call them."""

    name: str
    version: str
    title: str

    @property
    def folder(self) -> Path:
        """Where they are, once they were fetched."""
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(caches) / "fairlead" / f"{self.name}-{self.version}"

    def require(self) -> None:
        """Raises MissingProgram when they are not here and Maven is not, which would fetch them."""
        if not self.folder.is_dir() and shutil.which("mvn") is None:
            raise MissingProgram(f"Maven, which fetches {self.title}, is missing: {INSTALL}")

    def fetched(self) -> Path:
        """Their folder; they are fetched if they are not there. Raises MissingProgram,
        RuntimeError."""
        self.require()
        folder = self.folder
        if folder.is_dir():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Made aside and renamed: what bears the name is whole, whatever interrupts us.
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=folder.parent) as aside:
            jars = Path(aside) / "jars"
            self._copy(jars)
            # Whoever was faster has fetched the same.
            with contextlib.suppress(OSError):
                jars.rename(folder)
        if not folder.is_dir():
            raise RuntimeError(f"the jars of {self.title} could not be kept in {folder}")
        return folder

    def _copy(self, folder: Path) -> None:
        pom = Path(__file__).parent / "maven" / f"{self.name}-pom.xml"
        fetched = subprocess.run(
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
        if fetched.returncode:
            said = fetched.stdout.decode(errors="replace")[-3000:]
            raise RuntimeError(f"Maven could not fetch {self.title}:\n{said}")
