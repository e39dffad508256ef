"""Policies: versions of computed weights and limits, and one version with its changes."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from fairlead.operate.policies import PolicyManagement
from fairlead.operate.store.policies import KEPT_VERSIONS, Policy, PolicyState, SwitchMode
from fairlead.web.page import Page
from fairlead.web.routing import Navigation, ScreenRoute, screen

NAVIGATION = Navigation(title="Policies", route="policies", order=110)

_MOST_VERSION = (1 << 63) - 1
_MOST_KEYS = 500
"""Fairness keys that the screen of a version shows, those with the greatest changes first."""


class KeyChange(msgspec.Struct, frozen=True):
    """Weight and limit of a fairness key in a version, beside those of the version before."""

    fairness_key: str
    raw: float | None
    weight: float | None
    weight_before: float | None
    why: str
    limit: int | None
    limit_before: int | None
    limit_why: str


def routes() -> list[ScreenRoute]:
    """Return the routes of these screens."""
    return [
        screen("/policies", show_policies, name="policies"),
        screen("/policies/version", show_policy, name="policy"),
    ]


def show_policies(page: Page) -> Response:
    """Show the versions of a queue, or of all, and the switches."""
    queue, rows = page.query.text("queue"), page.query.rows()
    policies, switches, queues = page.shared(("policies", queue, rows), lambda: _read(page, queue))
    return page.render(
        "policies.html",
        policies=policies[:rows],
        is_more=len(policies) > rows,
        switches=switches,
        queue=queue,
        choices=[("", "all queues"), *((name, name) for name in queues)],
        modes=[mode.value for mode in SwitchMode],
    )


def _read(page: Page, queue: str | None) -> tuple[list[Policy], list[object], list[str]]:
    management = PolicyManagement(page.context)
    return (
        management.policies(queue, page.query.rows() + 1),
        list(management.switches()),
        sorted(management.newest()),
    )


def show_policy(page: Page) -> Response:
    """Show one version beside the one before it."""
    version = page.query.whole("version", 1, _MOST_VERSION, 0)
    management = PolicyManagement(page.context)
    policy = management.policy(version)
    before = _before(management, policy)
    changes = _changes(policy, before)
    return page.render(
        "policy.html",
        policy=policy,
        before=before,
        changes=changes[:_MOST_KEYS],
        hidden=max(len(changes) - _MOST_KEYS, 0),
        is_active=policy.state is PolicyState.ACTIVE,
        waits=policy.is_canary and policy.judged_at is None,
    )


def _before(management: PolicyManagement, policy: Policy) -> Policy | None:
    """Return the version before this one; None if it is gone or there was none."""
    if policy.supersedes is None:
        return None
    found = management.policies(policy.queue, KEPT_VERSIONS)
    return next((each for each in found if each.version == policy.supersedes), None)


def _changes(policy: Policy, before: Policy | None) -> list[KeyChange]:
    """Return the keys of two versions, those whose weight changes most first."""
    weights, limits = (before.guarded, before.limits) if before is not None else ({}, {})
    keys = {*policy.guarded, *policy.limits, *policy.limit_reasons, *weights, *limits}
    found = [
        KeyChange(
            key,
            policy.raw.get(key),
            policy.guarded.get(key),
            weights.get(key),
            policy.reasons.get(key, ""),
            policy.limits.get(key),
            limits.get(key),
            policy.limit_reasons.get(key, ""),
        )
        for key in keys
    ]
    return sorted(found, key=lambda change: (-_size(change), change.fairness_key))


def _size(change: KeyChange) -> float:
    """Return the factor by which the weight changes, and more for a limit that changes."""
    now, before = change.weight or 1.0, change.weight_before or 1.0
    return max(now / before, before / now) + (change.limit != change.limit_before)
