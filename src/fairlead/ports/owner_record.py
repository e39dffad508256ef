"""The owner record: a name on a shared server, such as a prefix or a folder, belongs to one task
store.

The record is written once, by the first application that uses the name. Applications on another
task store are refused, because they would take each other's tasks.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.model.reading import json_reader
from fairlead.ports.cluster import Cluster


class OwnerRecord(msgspec.Struct, frozen=True):
    """The task store that owns a name."""

    store_id: str
    location: str
    """Name of the store for messages, without secrets."""
    id: str = ""
    """Random id of the record; empty in that of a keyspace, which needs none."""


ReadOwner = Callable[[], OwnerRecord | None]
"""Reads the owner of a name; returns None if there is none."""


class OtherOwner(ConfigurationError):
    """A name on a shared server belongs to another application."""


class OwnedName(NamedTuple):
    """A name on a shared server."""

    name: str
    """The name for messages, with its server."""
    record: str
    """Place of the record, which a person deletes if the owner is gone, for messages."""
    option: str
    """Part of the URL that has the name, for messages."""
    kind: str = ""
    """Kind of the name for `Cluster.register_part`."""

    def require(self, owner: OwnerRecord, mine: OwnerRecord) -> None:
        """Raise OtherOwner if the name belongs to another task store than `mine`."""
        if owner.store_id == mine.store_id:
            return
        raise OtherOwner(
            f"{self.name} belongs to the application whose tasks are in {owner.location} (store"
            f" {owner.store_id}), and this application's tasks are in {mine.location} (store"
            f" {mine.store_id}): give one of the two another {self.option}; if the first one is"
            f" gone for good, delete {self.record}"
        )

    def require_part(self, owner: OwnerRecord, store: Cluster) -> None:
        """Raise OtherOwner if the task store belongs to an application with another name of this
        kind. A store without a SQL database has its tasks under one prefix and its leases in one
        folder. Blocks; raises StoreUnavailable."""
        part = owner.id
        found = store.database.read_now(store.register_part(self.kind, part))
        if found != part:
            raise OtherOwner(
                f"{store.database.location} belongs to an application with another {self.kind} than"
                f" {self.name}: give one of the two another keyspace, or both the same"
                f" {self.option}; if the other {self.kind} is gone for good, delete the row"
                f" {self.kind!r} of fairlead_store in the keyspace"
            )

    def require_location(
        self, owner: OwnerRecord | None, store: Cluster, away: StoreUnavailable
    ) -> None:
        """Check by the location of our task store, while it is away, that the name belongs to it.
        Raise `away` if the name has no owner, or one in another place."""
        if owner is None or owner.location != store.database.location:
            raise away


class NameOwner:
    """The owner of a name, for any thread. Its methods raise ConfigurationError if the name belongs
    to another task store, and StoreUnavailable while the server of the name is unavailable. While
    the task store is unavailable, an owner at its location will do; without one, they raise
    StoreUnavailable."""

    def __init__(self, name: OwnedName, store: Cluster | None) -> None:
        """`store`: the task store of this application; None checks nothing."""
        self._name = name
        self._store = store
        self._lock = threading.Lock()
        self._is_ours = False

    def require(self, read: ReadOwner, take: Callable[[OwnerRecord], OwnerRecord | None]) -> None:
        """Check that the name belongs to this application, and take a name without an owner. Calls
        after the first success return at once. `read`: reads the owner. `take`: writes our record
        and returns the owner, which may be an application that was faster."""
        with self._lock:
            self._is_ours = self._is_ours or self._verify(read, take)

    def check(self, read: ReadOwner) -> None:
        """Check as `require` does, but take no name, and read the owner anew."""
        self._verify(read, lambda mine: None)

    def _verify(self, read: ReadOwner, take: Callable[[OwnerRecord], OwnerRecord | None]) -> bool:
        """Return whether the name is ours for sure."""
        if (store := self._store) is None:
            return True
        try:
            mine = record_of(store)
        except StoreUnavailable as away:
            self._name.require_location(read(), store, away)
            return False
        if mine is None:
            return True
        owner = read() or take(mine)
        if owner is not None:
            self._name.require(owner, mine)
            if self._name.kind:
                self._name.require_part(owner, store)
        return owner is not None


encode = msgspec.json.Encoder().encode
_read = json_reader(OwnerRecord)


def decode(data: bytes | None) -> OwnerRecord | None:
    """Return the record in the data; None if the data cannot be read."""
    try:
        return _read(data or b"")
    except msgspec.DecodeError:
        return None


def record_of(store: Cluster) -> OwnerRecord | None:
    """Return a new record of a task store; None if the store has no id, because it keeps none.
    Blocks; raises StoreUnavailable."""
    found = store.database.read_now(store.store_id())
    if found is None:
        return None
    return OwnerRecord(found, store.database.location, uuid.uuid4().hex)
