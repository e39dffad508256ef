"""A store of permit ledgers in memory, which carries out the steps of one node after the other."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from fairlead.core.limits.sharded_permits import FindEnded, LedgerSteps, Step, WriteShard

T = TypeVar("T")


class LedgerStore:
    """Shards of one limit, by name, with their versions."""

    def __init__(self) -> None:
        self.shards: dict[str, tuple[bytes, int]] = {}
        self.greatest = 0
        """Bytes of the greatest record ever written."""
        self.ended: set[str] = set()
        """Nodes whose processes have ended."""

    def read(self, shard: str) -> tuple[bytes, int]:
        return self.shards.get(shard, (b"", 0))

    def write(self, shard: str, ledger: bytes, version: int) -> bool:
        if self.read(shard)[1] != version:
            return False
        self.shards[shard] = (ledger, version + 1)
        self.greatest = max(self.greatest, len(ledger))
        return True

    def carry_out(self, step: Step) -> object:
        if isinstance(step, FindEnded):
            return self.ended & step.nodes
        return self.write(*step) if isinstance(step, WriteShard) else self.read(step.shard)

    def follow(self, steps: LedgerSteps[T], writes: int | None = None) -> T | None:
        """Carry out the steps, and return their result. Stop before the next write after so many
        `writes`, as a crash does, and return None."""
        result: Any = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                return cast(T, end.value)
            if isinstance(step, WriteShard) and writes is not None:
                if writes == 0:
                    return None
                writes -= 1
            result = self.carry_out(step)
