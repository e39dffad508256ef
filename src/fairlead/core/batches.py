"""How many entries one write may have, where the limits of a server may refuse large writes."""

from __future__ import annotations


class BatchSize:
    """Maximum number of entries in one write. A refused batch halves it, and each accepted full
    batch makes it a tenth greater, so that a limit that was lowered for an hour does not slow the
    node for ever."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.allowed = most
        """Maximum number of entries in the next write."""

    def refused(self, count: int) -> None:
        """Record that the server refused a write of `count` entries. One entry alone says nothing
        about the size."""
        if count > 1:
            self.allowed = min(self.allowed, count // 2)

    def accepted(self, count: int) -> None:
        """Record that the server accepted a write of `count` entries."""
        if count >= self.allowed:
            self.allowed = min(self.most, self.allowed + 1 + self.allowed // 10)
