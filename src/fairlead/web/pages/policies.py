"""Policies: versions of computed weights and limits, one version with its changes, the verdict on a
canary, rollback, and the kill switch."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from fairlead.errors import InvalidTask
from fairlead.operate.policies import PolicyManagement
from fairlead.operate.store.policies import KEPT_VERSIONS, Policy, PolicyState, SwitchMode
from fairlead.web.page import Page
from fairlead.web.routing import Navigation, ScreenRoute, action, screen

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
        action("/policies/approve", approve, name="policy_approve", action="policy"),
        action("/policies/roll-back", roll_back, name="policy_roll_back", action="policy"),
        action("/policies/switch", switch, name="policy_switch", action="policy"),
        action("/policies/switch-on", switch_on, name="policy_switch_on", action="policy"),
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


def approve(page: Page) -> Response:
    """Keep the canary that is in force; other queues follow it."""
    version = page.form.whole("version", 1, _MOST_VERSION, 0)
    verdict = f"approved by {page.access.name}: {_why(page)}"
    PolicyManagement(page.context).keep(version, verdict)
    return page.done(f"Version {version} stays in force.", "policy", version=version)


def roll_back(page: Page) -> Response:
    """Put the weights and limits of an earlier version in force, as a new version."""
    to = page.form.whole("to", 0, _MOST_VERSION, 0)
    queue = page.form.required("queue")
    management = PolicyManagement(page.context)
    version = management.roll_back_to(to, page.access.name, _why(page), queue)
    what = f"those of version {to}" if to else "the declared weights"
    return page.done(f"Version {version} of {queue}: {what} are in force.", "policies")


def switch(page: Page) -> Response:
    """Switch computed weights and limits off, or freeze them."""
    mode = SwitchMode(page.form.one_of("mode", [each.value for each in SwitchMode]) or "frozen")
    queue = page.form.exact("queue") or ""
    PolicyManagement(page.context).switch(mode, page.access.name, _why(page), queue)
    return page.done(f"Tuning of {queue or 'every queue'} is {mode}.", "policies")


def switch_on(page: Page) -> Response:
    """Remove the switch of a queue, or the one of all. Raise InvalidTask if none is set."""
    queue = page.form.exact("queue") or ""
    if not PolicyManagement(page.context).switch_on(queue, author=page.access.name):
        raise InvalidTask(f"no switch of {queue or 'every queue'} is set")
    return page.done(f"Tuning of {queue or 'every queue'} is on.", "policies")


def _why(page: Page) -> str:
    return page.form.required("why", 500)
