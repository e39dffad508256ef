"""Run times whose unit or values are fixed, for bounds that hold while they do not change."""

from __future__ import annotations

from fairlead.core.fair.run_times import RunTimes

SECOND = 1_000_000


class Steady(RunTimes):
    """Run times with a fixed unit of a second: the bound holds while the unit does not change."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = SECOND
        self._all.add(SECOND, 1000)

    def _set_unit(self) -> None:
        pass


class Exact(Steady):
    """Run times that are known before the runs."""

    def __init__(self, costs: dict[str, int]) -> None:
        super().__init__()
        self._costs = costs

    def expected(self, name: str, key: str) -> int:
        return self._costs[key]
