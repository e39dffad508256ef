"""Tenants: fairness keys may be paths, and the keys of one tenant share what the tenant gets.

A key "acme/user-7" belongs to the tenant "acme" (`fairlead.model.tenant_of`). Hierarchical
start-time fair queueing (Goyal, Vin and Cheng 1996, section 3): shares go to tenants first, and
inside a tenant to its keys, by a virtual time of the tenant. A key that is no path is a tenant of
its own, and one of its keys if others are paths.
"""

from __future__ import annotations

from collections.abc import Mapping


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
