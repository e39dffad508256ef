"""Real servers for tests, benchmarks and experiments, on the loopback address and in a temporary
folder.

Each server has a file; `services.server.Server` is the part that they share.
"""

from __future__ import annotations


class MissingProgram(RuntimeError):
    """A program of a server is missing; the text says how to install it."""
