"""The sources of a node's triggers: its own partitions, and the grants of other owners."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fairlead.engine.execution import Execution
from fairlead.engine.helping import Helping
from fairlead.engine.intake import Intake
from fairlead.engine.ordering import Ordering
from fairlead.model import Trigger, TriggerPath


class Sources:
    """Pass the events of each trigger to the part that it came from."""

    def __init__(self, intake: Intake, ordering: Ordering, helping: Helping) -> None:
        self._intake = intake
        self._ordering = ordering
        self._helping = helping

    def taken(self, triggers: Sequence[Trigger]) -> None:
        """Note triggers that left the table."""
        own, granted = split(triggers)
        self._intake.taken(own)
        if granted:
            self._helping.taken(granted)

    def claim_ended(self, triggers: Sequence[Trigger]) -> None:
        """Note that the claim of these triggers ended, won or lost."""
        own, granted = split(triggers)
        self._intake.claim_ended(own)
        if granted:
            self._helping.claimed(granted)

    def refused(self, triggers: Sequence[Trigger]) -> None:
        """Drop triggers whose claim was lost."""
        own, granted = split(triggers)
        self._intake.refused(own)
        if granted:
            self._helping.refused(granted)

    def returned(self, triggers: Sequence[Trigger]) -> None:
        """Put back triggers whose claim has an unknown result."""
        own, granted = split(triggers)
        self._intake.returned(own)
        if granted:
            self._helping.returned(granted)

    def outdated(self, triggers: Sequence[Trigger]) -> None:
        """Note triggers that left the table because the versions of their tasks changed."""
        self.taken(triggers)
        self.claim_ended(triggers)
        self.refused(triggers)

    def key_refused(self, trigger: Trigger) -> None:
        """Note that a trigger with an ordering key acquired its slots, and its claim was lost."""
        if trigger.path == TriggerPath.GRANT:
            self._helping.release_key(trigger)
        else:
            self._ordering.refused(trigger)

    def settled(self, executions: Collection[Execution]) -> None:
        """Note that the store has recorded or refused the ends of these runs."""
        own = []
        for execution in executions:
            trigger = execution.trigger
            if trigger.path == TriggerPath.GRANT:
                self._helping.ended(execution)
                continue
            own.append(trigger)
            if trigger.ordering_key is not None and execution.holds_slot:
                self._ordering.ended(trigger, execution.is_done)
        self._intake.drop(own)


def split(triggers: Sequence[Trigger]) -> tuple[Sequence[Trigger], Sequence[Trigger]]:
    """Return the triggers of the node's own partitions, and the granted ones."""
    granted = [trigger for trigger in triggers if trigger.path == TriggerPath.GRANT]
    if not granted:
        return triggers, granted
    return [trigger for trigger in triggers if trigger.path != TriggerPath.GRANT], granted
