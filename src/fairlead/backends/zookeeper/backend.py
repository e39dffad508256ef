"""The ports that a URL `zookeeper://host:2181/folder` gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fairlead.ports.backend import Backend, BackendContext, Kind
from fairlead.ports.coordinator import Coordinator


class ZooKeeperBackend(Backend):
    """Leases, and the permit ledgers of cluster-wide limits."""

    offers: ClassVar[Mapping[Kind, str]] = {"coordinator": "zookeeper://host:2181/folder"}
    modules = ("kazoo",)
    install = "fairlead[zookeeper]"

    def coordinator(self, url: str | None, context: BackendContext) -> Coordinator:
        from fairlead.backends.zookeeper.coordinator import ZooKeeperCoordinator

        assert url is not None
        return ZooKeeperCoordinator(url, context.store)
