"""Rows and tombstones that reads scan on the replicas of Cassandra, from traces of requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from fairlead.backends.cassandra.session import CassandraSession

_SCANNED = re.compile(r"Read (\d+) live rows and (\d+) tombstone")


class Scan(NamedTuple):
    """Rows and tombstones that requests read, each on the replica that read the most."""

    rows: int
    tombstones: int
    """A range tombstone counts twice, for its start and its end."""


async def traced(session: CassandraSession, read: Callable[[], Awaitable[Any]]) -> tuple[Any, Scan]:
    """Return the result of a read, and what its requests scanned."""
    respond, scanned = session._response, [Scan(0, 0)]

    async def respond_traced(make_statement: Callable[[], Any], **options: Any) -> Any:
        response = await respond(make_statement, **options, trace=True)
        trace = await asyncio.to_thread(response.get_query_trace)
        met = [
            Scan(int(rows), int(tombstones))
            for event in trace.events
            for rows, tombstones in _SCANNED.findall(event.description)
        ]
        scanned.append(Scan(*map(max, zip((0, 0), *met, strict=True))))
        return response

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_response", respond_traced)
        found = await read()
    return found, Scan(*map(sum, zip(*scanned, strict=True)))
