"""Nodes and queues as the store knows them, for nodes and for people."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from fairlead.model.fields import Micros


class QueueSettings(NamedTuple):
    """Settings of a queue, made by people and nodes."""

    partitions: int
    """Greatest number of partitions ever registered."""
    paused: bool
    version: int
    """Raised by each change of the queue's settings, weights or limits."""


class SettingsMark(NamedTuple):
    """Mark of the settings, weights and limits of all queues."""

    changes: object
    """Value that differs after every change that `queue_settings` would show."""
    server: str = ""
    """Text that another server, or the server after a restart, does not return; empty if no server
    can lose what it has acknowledged."""


class NodeFacts(msgspec.Struct, frozen=True):
    """Facts that a node records when it registers."""

    slots: int
    """Runs that the node allows at once."""
    version: str
    """Version of Fairlead."""
    python: str
    """Version of Python."""


class NodeRecord(msgspec.Struct, frozen=True):
    """Record of a node that the other nodes read; instants in microseconds since the epoch."""

    node: str
    started_at: Micros
    heartbeat_at: Micros
    queues: list[str]
    names: list[str]
    """Names of the tasks that the node has handlers for."""
    facts: NodeFacts


class ClusterState(NamedTuple):
    """Nodes, and the mark of the settings of queues, as one heartbeat reads them."""

    nodes: list[NodeRecord]
    mark: SettingsMark
