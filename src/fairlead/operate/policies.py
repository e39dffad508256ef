"""Commands for computed weights and limits: show versions, return to one, switch tuning off and
on."""

from __future__ import annotations

from fairlead.errors import ConfigurationError, NotAllowed, UnknownPolicy
from fairlead.operate.audit import Recorder
from fairlead.operate.changes import A_PERSON
from fairlead.operate.context import OperateContext, unknown_queue
from fairlead.operate.store.audit import AuditDraft
from fairlead.operate.store.policies import (
    EVERY_QUEUE,
    MAPS,
    Policy,
    PolicyDraft,
    PolicyState,
    PolicyStore,
    Switch,
    SwitchMode,
    Weights,
)
from fairlead.ports.notification import Notification
from fairlead.ports.statements import Steps

DECLARED = 0
"""Version number that stands for the declared weights and limits."""


class PolicyManagement:
    """Commands for policy versions. Raise NotSupported where tasks are not in a SQL database."""

    def __init__(self, context: OperateContext) -> None:
        self._context = context
        self._tasks = context.sql_store
        self._store = PolicyStore(self._tasks)
        self._database = self._tasks.database
        self._recorder = Recorder(context)

    # queries --------------------------------------------------------------------------------------

    def policies(self, queue: str | None = None, limit: int = 20) -> list[Policy]:
        """Return the versions of a queue, or of all queues, newest first."""
        return self._database.read_now(self._store.policies(queue, limit))

    def policy(self, version: int) -> Policy:
        """Return one version. Raise UnknownPolicy."""
        found = self._database.read_now(self._store.policy(version))
        if found is None:
            raise UnknownPolicy(
                f"no version {version}; `fairlead pipeline policies` lists the stored versions"
            )
        return found

    def newest(self) -> dict[str, Policy]:
        """Return the newest version of each queue that has one."""
        return self._database.read_now(self._store.newest())

    def weights(self, queue: str) -> Weights:
        """Return the weights that override the weights of the tasks, and who set each."""
        return self._database.read_now(self._store.weights(queue))

    def limits(self, queue: str) -> dict[str, int]:
        """Return the limits in force in addition to those of the code: slots on each node, by
        fairness key."""
        return self._database.read_now(self._tasks.limits(queue))

    def limits_by_person(self, queue: str) -> dict[str, int]:
        """Return the limits that people have set, by fairness key. No policy changes them."""
        return self._database.read_now(self._store.limits_by_person(queue))

    def switches(self) -> list[Switch]:
        """Return the queues whose tuning is off or frozen."""
        return self._database.read_now(self._store.switches())

    # changes --------------------------------------------------------------------------------------

    def publish(self, draft: PolicyDraft, supersedes: int | None) -> int:
        """Put these weights and limits in force; running workers apply them within seconds.

        `supersedes`: the version in force now. Raise NotAllowed when another version is in force,
        or tuning is off or frozen.
        """
        version = self._database.run(
            self._noted(
                self._store.publish(draft, supersedes), draft.author, "publish_policy", draft
            )
        )
        if version is None:
            raise NotAllowed(
                f"queue {draft.queue}: another process has published or rolled back a version, or"
                " tuning was switched off; run the command again"
            )
        self._announce()
        return version

    def keep(self, version: int, verdict: str) -> None:
        """Record the verdict that keeps a version after its canary window."""
        self._database.run(self._store.judge(version, verdict, self._context.clock.now()))

    def roll_back(self, policy: Policy, to: int, author: str, why: str) -> int:
        """Put the weights and limits of version `to` back in force instead of `policy`; DECLARED
        means the declared ones. Return the new version that records this. Raise UnknownPolicy,
        NotAllowed."""
        earlier = None if to == DECLARED else self.policy(to)
        if earlier is not None and earlier.queue != policy.queue:
            raise NotAllowed(f"version {to} is of queue {earlier.queue}, not of {policy.queue}")
        now = self._context.clock.now()
        draft = PolicyDraft(
            queue=policy.queue,
            author=author,
            why=f"back to {'the declared weights' if earlier is None else f'version {to}'}: {why}",
            computed_at=now,
            judged_at=now,
            verdict="no canary window, because the version was in force before",
            **({} if earlier is None else {name: getattr(earlier, name) for name in MAPS}),
        )
        steps = self._store.roll_back(draft, policy.version, f"by {author}: {why}")
        version = self._database.run(self._noted(steps, author, "roll_back_policy", draft))
        if version is None:
            raise NotAllowed(
                f"version {policy.version} of queue {policy.queue} is no longer in force; list the"
                " versions again"
            )
        self._announce()
        return version

    def roll_back_to(self, version: int, author: str, why: str, queue: str | None = None) -> int:
        """Put `version` back in force instead of the version now in force in the same queue.
        DECLARED needs `queue`. Raise UnknownPolicy, NotAllowed, ConfigurationError."""
        if version == DECLARED and queue is None:
            raise ConfigurationError("version 0 stands for the declared weights; add --queue")
        where = queue if version == DECLARED else self.policy(version).queue
        active = next((p for p in self.policies(where, 1) if p.state == PolicyState.ACTIVE), None)
        if active is None:
            raise NotAllowed(f"queue {where}: no version is in force, so none can be rolled back")
        if active.version == version:
            raise NotAllowed(f"version {version} is already in force in queue {where}")
        return self.roll_back(active, version, author, why)

    def switch(self, mode: SwitchMode, author: str, why: str, queue: str = EVERY_QUEUE) -> None:
        """Set the kill switch of one queue or of all. OFF makes workers return to the declared
        weights and limits within seconds. Raise UnknownQueue."""
        if queue != EVERY_QUEUE and queue not in self._database.read_now(
            self._tasks.queue_settings()
        ):
            raise unknown_queue(queue)
        entry = self._recorder.entry(
            author, "switch_tuning", queue=queue or None, details=f"{mode}: {why}"
        )
        switch = Switch(queue, mode, author, why, self._context.clock.now())
        self._database.run(self._recorder.noted(self._store.switch(switch), lambda _: [entry]))
        self._announce()

    def switch_on(self, queue: str = EVERY_QUEUE, author: str = A_PERSON) -> bool:
        """Clear the kill switch; return False when it was not set."""
        steps = self._store.switch_on(queue)
        return self._recorder.run(steps, author, "switch_on_tuning", queue=queue or None)

    def _noted(
        self, steps: Steps[int | None], author: str, verb: str, draft: PolicyDraft
    ) -> Steps[int | None]:
        """Run the steps, and note the version that they return."""

        def entries(version: int | None) -> list[AuditDraft]:
            if version is None:
                return []
            subject = f"version {version}"
            return [
                self._recorder.entry(
                    author, verb, queue=draft.queue, subject=subject, details=draft.why
                )
            ]

        return self._recorder.noted(steps, entries)

    def _announce(self) -> None:
        self._context.channel.announce(Notification(control=True))
