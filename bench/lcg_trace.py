"""Jobs of a trace in the Standard Workload Format, plain or gzipped, for the benchmarks.

A line is a job of 18 fields; `;` starts a comment. See
https://www.cs.huji.ac.il/labs/parallel/workload/swf.html
"""

from __future__ import annotations

import gzip
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_SUBMIT, _RUN, _USER = 1, 3, 11


class TraceJob(NamedTuple):
    """One job of a trace. Times are seconds; `run` is 0 if unknown."""

    submit: float
    run: float
    user: int

    @property
    def tenant(self) -> str:
        """The user as a fairness key."""
        return f"user-{self.user}"


def read_trace(path: pathlib.Path) -> Iterator[TraceJob]:
    """Return the jobs of a trace in the order of the file."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.strip() and not line.startswith(";"):
                fields = line.split()
                run = max(0.0, float(fields[_RUN]))
                yield TraceJob(float(fields[_SUBMIT]), run, int(fields[_USER]))


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index of at least one share: 1 is fair, 1/n gives everything to one key."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0
