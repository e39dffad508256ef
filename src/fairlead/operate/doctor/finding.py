"""A finding: the result of a check about one thing."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["ok", "note", "problem"]

MOST_SHOWN = 10
"""Maximum number of names that one finding lists."""


class Finding(msgspec.Struct, frozen=True):
    """One finding; `cure` says how to solve a problem."""

    severity: Severity
    what: str
    cure: str | None = None


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, such as `1 task` or `1,200 tasks`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def ok(what: str) -> Finding:
    """Return a finding about something that is as it should be."""
    return Finding("ok", what)


def note(what: str, cure: str | None = None) -> Finding:
    """Return a finding for information."""
    return Finding("note", what, cure)


def problem(what: str, cure: str | None = None) -> Finding:
    """Return a finding that needs a person; `doctor` then exits with 1."""
    return Finding("problem", what, cure)
