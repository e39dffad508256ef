"""Reads of a keyspace with copies in several datacentres: whole while all of them answer, of one
datacentre else.

A write at LOCAL_QUORUM is acknowledged by one datacentre and reaches the others a little later;
after a crash or a cut line, much later. A read of a quorum in each (EACH_QUORUM) finds all that was
ever acknowledged, wherever that was.
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


class Datacentres:
    """See the module. With one datacentre, or consistency QUORUM, every read is whole as it is."""

    def __init__(self, session: CassandraSession) -> None:
        self._session = session
        self._is_one_away = False
        self._probe_at = 0.0

    def reading(self) -> Reading:
        """For one read, of one statement or several."""
        return Reading(self, self._session)

    async def may_be_whole(self) -> bool:
        """Whether to try; False also where nothing else is to be had than what one knows."""
        await self._session.connected()
        is_wide = self._session.url.consistency == "LOCAL_QUORUM" and self._session.datacentres > 1
        return is_wide and not self._is_one_away

    @property
    def is_one_away(self) -> bool:
        """What is read lacks what it alone knows."""
        return self._is_one_away

    def did_not_answer(self) -> None:
        """One of them, or not in time."""
        self._is_one_away = True
        self._probe_at = time.monotonic() + PROBE_SECONDS

    async def are_back(self, name: str, *params: Any) -> bool:
        """Whether all answer. While one is away it is asked every PROBE_SECONDS, by this
        statement."""
        if self._is_one_away and time.monotonic() >= self._probe_at:
            self._probe_at = time.monotonic() + PROBE_SECONDS
            with contextlib.suppress(StoreUnavailable):
                await self._session.execute(name, *params, consistency=ConsistencyLevel.EACH_QUORUM)
                self._is_one_away = False
        return not self._is_one_away


class Reading:
    """Made by `Datacentres.reading`."""

    def __init__(self, datacentres: Datacentres, session: CassandraSession) -> None:
        self._datacentres = datacentres
        self._session = session
        self.is_whole = True
        """Nothing was read of one datacentre only, so far."""

    async def rows(self, name: str, *params: Any, **options: Any) -> AsyncGenerator[Row, None]:
        """As those of a session; after a datacentre did not answer they come again, as one knows
        them. Raises StoreUnavailable."""
        if await self._datacentres.may_be_whole():
            try:
                async for row in self._session.rows(
                    name, *params, consistency=ConsistencyLevel.EACH_QUORUM, **options
                ):
                    yield row
                return
            except StoreUnavailable:
                self._datacentres.did_not_answer()
        if self._datacentres.is_one_away:
            self.is_whole = False
        async for row in self._session.rows(name, *params, **options):
            yield row
