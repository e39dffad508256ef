"""Starts the real servers for tests, benchmarks and trying things out: on loopback, in a temporary folder.

One file each, all of the same shape: see `Service`.
"""

from __future__ import annotations

from typing import Protocol


class MissingProgram(RuntimeError):
    """A server's program is not installed; the text says how to install it."""


class Service(Protocol):
    """A server of our own: nothing else uses it, and it ends with us."""

    name: str

    @property
    def url(self) -> str:
        """Where clients reach it, credentials included."""

    def start(self) -> None:
        """Return when it answers. Raises MissingProgram, or RuntimeError with the end of its log."""

    def stop(self, mode: str = "fast") -> None:
        """End it by its own pid and remove its folder."""

    def restart(self, mode: str = "immediate") -> None:
        """Stop and start with the same port and data; `immediate` is as if it had crashed."""
