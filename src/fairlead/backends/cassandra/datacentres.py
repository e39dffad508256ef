"""Reads of a keyspace with copies in several datacentres: from all of them while all respond, else
from one.

One datacentre acknowledges a write at LOCAL_QUORUM; the others receive the write a little later, or
much later after a crash or a network failure. A read of a quorum in each datacentre (EACH_QUORUM)
finds every write that any datacentre has acknowledged. Such a read is called whole.

A datacentre that comes back lacks the writes of its absence until hints or repair bring them. If a
whole read is impossible, a read of this datacentre alone would miss those writes. So it is allowed
only while the datacentres that acknowledged them are down; otherwise the read fails, and is tried
again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

from cassandra import ConsistencyLevel

from fairlead.backends.cassandra.session import CassandraSession
from fairlead.errors import StoreUnavailable
from fairlead.ports.statements import Row

PROBE_SECONDS = 5.0
"""Seconds between two checks whether a missing datacentre responds again."""


SETTLE_SECONDS = 600.0
"""Seconds after the return of a datacentre in which it may lack writes of its absence."""


class Datacentres:
    """The datacentres of a keyspace, and whether one of them does not respond."""

    def __init__(self, session: CassandraSession) -> None:
        self._session = session
        self._is_one_away = False
        self._probe_at = 0.0
        self._settled_at = 0.0
        self._was_refused = False
        """Whether a read of one datacentre was refused; the next read asks each of them."""
        self._writer: str | None = None
        """Datacentre that has acknowledged the latest write of this process."""
        self._writers: set[str] = set()
        """Datacentres that have acknowledged writes since one went away."""
        session.on_written = self._on_written

    def reading(self) -> DatacentreReading:
        """Return a new read, of one statement or several."""
        return DatacentreReading(self, self._session)

    async def reads_each(self) -> bool:
        """Return whether a read asks each datacentre. False while one does not respond, and where a
        read of one is whole: with one datacentre, or with consistency QUORUM."""
        await self._session.connected()
        is_wide = self._session.url.consistency == "LOCAL_QUORUM" and self._session.datacentres > 1
        return is_wide and (self._was_refused or not self._is_one_away)

    @property
    def is_one_away(self) -> bool:
        """True while a datacentre does not respond, so reads lack the writes that only it has."""
        return self._is_one_away

    def on_outage(self) -> None:
        """Record that a datacentre did not respond in time."""
        if not self._is_settling:
            self._writers.clear()
        self._is_one_away = True
        self._probe_at = time.monotonic() + PROBE_SECONDS

    async def are_back(self, name: str, *params: Any) -> bool:
        """Return whether all datacentres respond. While one does not, probe every PROBE_SECONDS
        with this statement."""
        if self._is_one_away and time.monotonic() >= self._probe_at:
            self._probe_at = time.monotonic() + PROBE_SECONDS
            with contextlib.suppress(StoreUnavailable):
                await self._session.execute(name, *params, consistency=ConsistencyLevel.EACH_QUORUM)
                self.on_whole()
        return not self._is_one_away

    def on_whole(self) -> None:
        """Record that all datacentres have responded."""
        if self._is_one_away:
            self._is_one_away = self._was_refused = False
            self._settled_at = time.monotonic() + SETTLE_SECONDS

    def check_source(self, datacentre: str) -> None:
        """Raise StoreUnavailable unless a read that is not whole may come from this datacentre: it
        has every write that this process knows of, or the others that have them are down."""
        up = self._session.datacentres_up()
        if self._writers:
            is_sound = not any(up.get(other) for other in self._writers - {datacentre})
        else:
            is_sound = datacentre == self._writer or not all(up.values())
        self._was_refused = not is_sound
        if not is_sound:
            raise StoreUnavailable(
                f"{self._session.url.location}: not all datacentres respond to a read, and"
                f" {datacentre} may lack writes that another one has: wait until it has caught up"
            )

    @property
    def _is_settling(self) -> bool:
        """Whether a datacentre is away, or may lack writes of its absence."""
        return self._is_one_away or time.monotonic() < self._settled_at

    def _on_written(self, datacentre: str) -> None:
        self._writer = datacentre
        if self._is_settling:
            self._writers.add(datacentre)


class DatacentreReading:
    """A read of one or several statements, made by `Datacentres.reading`."""

    def __init__(self, datacentres: Datacentres, session: CassandraSession) -> None:
        self._datacentres = datacentres
        self._session = session
        self.is_whole = True
        """True while no statement has read from one datacentre only."""

    async def rows(self, name: str, *params: Any, **options: Any) -> AsyncGenerator[Row, None]:
        """Yield rows as a session does. If a datacentre does not respond, yield all rows again, as
        one datacentre has them. Raise StoreUnavailable."""
        if await self._datacentres.reads_each():
            try:
                async for row in self._session.rows(
                    name, *params, consistency=ConsistencyLevel.EACH_QUORUM, **options
                ):
                    yield row
                self._datacentres.on_whole()
                return
            except StoreUnavailable:
                self._datacentres.on_outage()
        if self._datacentres.is_one_away:
            self.is_whole = False
            options["check"] = self._datacentres.check_source
        async for row in self._session.rows(name, *params, **options):
            yield row
