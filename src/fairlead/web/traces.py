"""Addresses of traces."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fairlead.errors import FairleadError

_HEX = frozenset("0123456789abcdef")


def trace_address(trace_url: Callable[[str], str | None] | None, context: str | None) -> str | None:
    """Return the address of the trace that a task's context names; None without one. Only the id of
    a trace, 32 hexadecimal digits, goes into an address."""
    if trace_url is None or context is None:
        return None
    try:
        trace_id = msgspec.json.decode(context, type=dict[str, str])["traceparent"].split("-")[1]
        if len(trace_id) != 32 or not _HEX.issuperset(trace_id):
            return None
        found = trace_url(trace_id)
    except (msgspec.DecodeError, KeyError, IndexError, FairleadError):
        return None
    return found if found is not None and found.startswith(("https://", "http://")) else None
