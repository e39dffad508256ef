"""The store of an application without a SQL database: its id, its queues, its nodes and its
incidents, in tables of one partition each. Its tasks are in a log and a schedule."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from fairlead.backends.cassandra.database import APP, CassandraDatabase
from fairlead.backends.cassandra.incidents import CassandraIncidents
from fairlead.backends.cassandra.run_history import CassandraRunHistory, stored_id
from fairlead.model.reading import json_reader
from fairlead.ports.cluster import (
    ClusterState,
    NodeFacts,
    NodeRecord,
    QueueSettings,
    SettingsMark,
)
from fairlead.ports.notification import Notification
from fairlead.ports.run_history import RunHistory
from fairlead.ports.statements import Database, Statement, Steps

_read = json_reader(NodeRecord)
log = logging.getLogger("fairlead.cassandra")


class CassandraCluster:
    """A `fairlead.ports.cluster.Cluster` on Cassandra."""

    def __init__(self, url: str) -> None:
        """Open no connection yet. Raise ConfigurationError."""
        self.url = url
        self._own = CassandraDatabase(url)
        self.database: Database = self._own
        self.incidents = CassandraIncidents(self.database)
        self.runs: RunHistory = CassandraRunHistory(self.database)

    def with_tasks(self) -> None:
        return None

    with_tables = with_tasks

    def prepare(self) -> None:
        self.database.read_now(self.runs.store_id())

    def migrate(self) -> list[str]:
        from fairlead.backends.cassandra.schedule import CassandraScheduleStore

        # First, because our statements read the history in the tables of the schedule.
        CassandraScheduleStore(self.url, None).session.migrate_now()
        self._own.session.migrate_now()
        self.database.run(_make_store_id())
        return []

    def store_id(self) -> Steps[str | None]:
        return stored_id()

    def register_part(self, kind: str, part: str) -> Steps[str]:
        while True:
            rows = yield Statement("part", (APP, kind))
            if rows:
                return str(rows[0][0])
            yield Statement("add_part", (APP, kind, part))

    # queues ---------------------------------------------------------------------------------------

    async def register_queues(self, partitions: dict[str, int]) -> dict[str, QueueSettings]:
        return await self.database.run_async(self.registration(partitions))

    def registration(self, partitions: dict[str, int]) -> Steps[dict[str, QueueSettings]]:
        while True:
            known = yield from self.queue_settings()
            low = {
                queue: count
                for queue, count in partitions.items()
                if queue not in known or known[queue].partitions < count
            }
            if not low:
                return {queue: known[queue] for queue in partitions}
            for queue, count in low.items():
                if queue in known:
                    yield from self.resizing(queue, count, known[queue].version)
                else:
                    yield Statement("add_queue", (APP, queue, count))

    def resizing(self, queue: str, partitions: int, version: int) -> Steps[bool]:
        change = (partitions, version + 1, APP, queue, version)
        return _applied((yield Statement("resize_queue", change)))

    def pause(self, queue: str, paused: bool) -> Steps[bool]:
        while True:
            known = (yield from self.queue_settings()).get(queue)
            if known is None:
                return False
            change = (paused, known.version + 1, APP, queue, known.version)
            if known.paused == paused or _applied((yield Statement("pause_queue", change))):
                return True

    def queue_settings(self) -> Steps[dict[str, QueueSettings]]:
        rows = yield Statement("queues", (APP,))
        return {
            queue: QueueSettings(*settings) for queue, *settings in rows if None not in settings
        }

    def settings_mark(self) -> Steps[SettingsMark]:
        return SettingsMark((yield from self.queue_settings()))

    # nodes ----------------------------------------------------------------------------------------

    async def register_node(
        self,
        node: str,
        queues: Sequence[str],
        names: Sequence[str],
        now: int,
        facts: NodeFacts,
    ) -> Notification:
        known = {record.node: record for record in await self.database.read(self.nodes())}.get(node)
        started = now if known is None else known.started_at
        record = NodeRecord(node, started, now, list(queues), list(names), facts)
        await self.database.run_async(_put_node(record, now))
        return Notification(control=True)

    async def heartbeat(self, node: str, now: int) -> ClusterState | None:
        if not _applied(await self.database.run_async(_one("heartbeat", now, APP, node))):
            return None
        nodes = await self.database.read(self.nodes())
        return ClusterState(nodes, await self.database.read(self.settings_mark()))

    async def drop_node(self, node: str) -> Notification:
        await self.database.run_async(_one("drop_node", APP, node))
        return Notification(control=True)

    def nodes(self) -> Steps[list[NodeRecord]]:
        found = []
        for text, heartbeat_at in (yield Statement("nodes", (APP,))):
            try:
                record = _read(text or "")
                found.append(msgspec.structs.replace(record, heartbeat_at=heartbeat_at or 0))
            except msgspec.DecodeError as error:
                log.error("the record of a node cannot be read", extra={"error": str(error)})
        return found

    async def silent_nodes(self, now: int, silent_for: int) -> list[str]:
        nodes = await self.database.read(self.nodes())
        return [each.node for each in nodes if each.heartbeat_at < now - silent_for]


def _make_store_id() -> Steps[None]:
    yield Statement("make_store_id", (APP, uuid.uuid4().hex))


def _put_node(record: NodeRecord, now: int) -> Steps[None]:
    text = msgspec.json.encode(record).decode()
    while not _applied((yield Statement("change_node", (text, now, APP, record.node)))):
        if _applied((yield Statement("add_node", (APP, record.node, text, now)))):
            return


def _one(name: str, *params: Any) -> Steps[Sequence[Any]]:
    return (yield Statement(name, params))


def _applied(rows: Sequence[Any]) -> bool:
    """Return whether a lightweight transaction has changed its row."""
    return bool(rows[0][0])
