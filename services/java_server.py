"""The part that servers on Java share: jars from Maven, and a program in them."""

from __future__ import annotations

from typing import ClassVar

from services.jars import Jars
from services.java import java_program
from services.server import Server


class JavaServer(Server):
    """A server on Java, whose jars are fetched at the first start."""

    jars: ClassVar[Jars]
    options: ClassVar[tuple[str, ...]] = ()
    """Options of the Java virtual machine for all servers that this process starts."""

    def __init__(self) -> None:
        """Start nothing yet. Raise MissingProgram."""
        super().__init__()
        self._program = java_program(self.title)
        self.jars.require()

    def _java(self, *options: str, program: str) -> list[str]:
        """Return the command that runs the class `program`, to be followed by its arguments."""
        return [
            self._program,
            "-XX:+UseSerialGC",
            "-Djava.awt.headless=true",
            *self.options,
            *options,
            "-cp",
            f"{self.jars.fetch()}/*",
            program,
        ]
