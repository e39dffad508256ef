"""Starts the real servers for tests, benchmarks and trying things out: on loopback, in a temporary
folder.

One file each; see `services.server.Server` for what they share.
"""

from __future__ import annotations


class MissingProgram(RuntimeError):
    """A server's program is not installed; the text says how to install it."""
