"""What keeps a lake in step with the history of the store."""

from __future__ import annotations

from typing import Protocol


class LakeExporter(Protocol):
    """Moves history into a lake, a batch at a time. Its work blocks: it belongs into a thread."""

    def keep(self, check_every: float) -> bool:
        """Move the next batch; when there is none, and they were not compared for `check_every`
        seconds, compare lake and store, which lets the store clean. True: there is more to do at
        once."""
