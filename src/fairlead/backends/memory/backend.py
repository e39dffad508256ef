"""The ports that the URL `memory://` gives: notifications that stay in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fairlead.backends.memory.notifier import MemoryNotifier
from fairlead.ports.backend import Backend, BackendContext, Kind
from fairlead.ports.notifier import Notifier
from fairlead.ports.ordered_store import OrderedStore
from fairlead.ports.trigger_channel import TriggerChannel


class MemoryBackend(Backend):
    """The channel of the task store, with a notifier for this process only."""

    offers: ClassVar[Mapping[Kind, str]] = {"channel": "memory://"}

    def notifier(self, url: str | None, store: OrderedStore) -> Notifier:
        return MemoryNotifier()

    def channel(self, url: str | None, context: BackendContext) -> TriggerChannel:
        return context.home.channel(None, context)
