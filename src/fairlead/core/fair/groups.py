"""Groups that share: the tenants of a lane, and the keys of a tenant.

Fairness keys may be paths: a key "acme/user-7" belongs to the tenant "acme"
(`fairlead.model.tenant_of`). Hierarchical start-time fair queueing (Goyal, Vin and Cheng 1996,
section 3): shares go to tenants first, and inside a tenant to its keys, by a virtual time of the
tenant. A key that is no path is a tenant of its own, and one of its keys if others are paths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fairlead.core.fair.accounts import Account
from fairlead.core.fair.strides import STRIDE_SCALE, phase, step

FEW = 50
"""Number of names up to which those that begin are not spread."""

MOST_EARLY = 1000
"""Maximum number of names that begin ahead of others at once."""


class Scope:
    """A virtual time in which names begin: that of one priority, or that of a tenant's keys."""

    __slots__ = ("early", "now")

    def __init__(self) -> None:
        self.now = 0
        """Highest rank at which a trigger has started."""
        self.early = 0
        """Number of newcomers that may go ahead of others now."""

    def started(self) -> None:
        """Note that a trigger has started."""
        if self.early < MOST_EARLY:
            self.early += 1


class Group:
    """Names with accounts in one virtual time, and the ranks at which names begin.

    A newcomer goes ahead of all that wait there: with many, it would wait for one trigger of each.
    At most every second trigger that starts is a newcomer's, so none of the others waits for ever.
    Further newcomers are spread over one stride if there are many: at one rank, one of a great
    weight would wait for a trigger of each other. A name of which older rows were read begins where
    the order of these reads put it, at most one stride later.
    """

    __slots__ = ("_accounts", "_weight_of", "starts", "time")

    def __init__(
        self, time: Scope, accounts: Mapping[str, Account], weight_of: Callable[[str], float]
    ) -> None:
        """`accounts`: of the names in memory. `weight_of`: returns the weight of another name."""
        self.time = time
        self._accounts = accounts
        self._weight_of = weight_of
        self.starts: dict[str, int] = {}
        """Ranks of names whose older rows are being read."""

    def first_rank(self, name: str, step: int) -> int:
        """Return the rank of a name that begins. `step`: from its first trigger to the next."""
        now = self.time.now
        if (start := self.starts.pop(name, None)) is not None:
            return max(now, min(start, now + step))
        if self.time.early:
            self.time.early -= 1
            return now - 1
        return now + phase(name, step) if len(self._accounts) > FEW else now

    def tag(self, name: str, rows: int) -> int:
        """Return the start tag of the trigger of a name that comes after so many others."""
        now = self.time.now
        if (account := self._accounts.get(name)) is not None:
            return account.tag(now, rows)
        return now + rows * step(STRIDE_SCALE, self._weight_of(name))

    def rate(self, name: str) -> float:
        """Return how many triggers of a name start while one of weight 1 and mean run time does, as
        far as it is known."""
        account = self._accounts.get(name)
        return self._weight_of(name) if account is None else account.rate

    def start(self, name: str) -> int:
        """Return a tag for the next row of a name that waited: less than a stride after the virtual
        time."""
        return self.time.now + phase(name, step(STRIDE_SCALE, self.rate(name)))


def tenant_weight(weights: Mapping[str, float], tenant: str, key: str, weight: float) -> float:
    """Return the weight of a tenant among tenants: the one in `weights`, which are set at run time,
    or that of the task, `weight`, if its key is no path, else 1."""
    found = weights.get(tenant)
    if found is not None:
        return found
    return weight if key == tenant else 1.0


def key_weight(weights: Mapping[str, float], tenant: str, key: str, weight: float) -> float:
    """Return the weight of a key among the keys of its tenant: the one in `weights`, which are set
    at run time, or that of the task, `weight`. A key that is no path has 1, because its weight is
    that of the tenant."""
    return 1.0 if key == tenant else weights.get(key, weight)
