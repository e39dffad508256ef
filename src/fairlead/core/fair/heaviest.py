"""Weights of the tenants and keys that were chosen lately, by which a read of small memory is
divided among them."""

from __future__ import annotations

MOST_KEPT = 1000
"""Tenants whose weights, and most tenants whose heaviest keys, are kept; those chosen last."""

_DECAY = 0.9
"""Factor of the greatest weight at each choice, so that a key that ended soon does not count."""


class Heaviest:
    """The greatest weight of a tenant, and of a key in each tenant, that was chosen lately."""

    def __init__(self) -> None:
        self._round = 0
        self._found: dict[str | None, tuple[float, int]] = {}
        """(greatest weight, round of it) by tenant of keys; None for that of tenants."""
        self._tenants: dict[str, float] = {}
        """Weights above 1 of tenants chosen lately."""
        self._total = 0.0
        """Sum of these weights."""

    def next_round(self) -> None:
        """Begin a choice."""
        self._round += 1

    def part(self, tenant: str | None, weight: float) -> float:
        """Return the part (0 to 1) that a weight is of the greatest. `tenant`: whose key it is of;
        None for the weight of a tenant."""
        greatest, then = self._found.pop(tenant, (1.0, self._round))
        greatest = max(1.0, weight, greatest * _DECAY ** (self._round - then))
        if greatest > 1:
            self._found[tenant] = greatest, self._round
            if len(self._found) > MOST_KEPT:
                del self._found[next(iter(self._found))]
        return weight / greatest

    def share(self, tenant: str, weight: float, tenants: int) -> float:
        """Return the share of a tenant of all (0 to 1); 0 the first time, when others may not have
        been met. `tenants`: number of all."""
        before = self._tenants.pop(tenant, 0.0)
        self._total -= before
        if weight <= 1:
            return 0.0
        self._tenants[tenant] = weight
        self._total += weight
        if len(self._tenants) > MOST_KEPT:
            self._total -= self._tenants.pop(next(iter(self._tenants)))
        others = max(0, tenants - len(self._tenants))
        return weight / (self._total + others) if before else 0.0
