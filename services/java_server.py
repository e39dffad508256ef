"""What servers of ours that run on Java share: the jars of one of Maven's lists, and a program in
them."""

from __future__ import annotations

from typing import ClassVar

from services.jars import Jars
from services.java import java_program
from services.server import Server


class JavaServer(Server):
    """See `Server`. The first time ever its jars are fetched."""

    jars: ClassVar[Jars]

    def __init__(self) -> None:
        """Starts nothing. Raises MissingProgram."""
        super().__init__()
        self._program = java_program(self.title)
        self.jars.require()

    def _java(self, *options: str, program: str) -> list[str]:
        """The command that runs this class of the jars; what it takes itself comes after."""
        return [
            self._program,
            "-XX:+UseSerialGC",
            "-Djava.awt.headless=true",
            *options,
            "-cp",
            f"{self.jars.fetched()}/*",
            program,
        ]
