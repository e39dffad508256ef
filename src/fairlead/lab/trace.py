"""A reader of workload traces in the Standard Workload Format, one job at a time.

A line is a job of 18 fields; `;` starts a comment. See
https://www.cs.huji.ac.il/labs/parallel/workload/swf.html
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

from fairlead.errors import ConfigurationError, FairleadError

FIELDS = 18
_JOB, _SUBMIT, _RUN, _USER, _GROUP = 0, 1, 3, 11, 12
_NAMES = {
    _JOB: "job number",
    _SUBMIT: "submit time",
    _RUN: "run time",
    _USER: "user",
    _GROUP: "group",
}
_UNKNOWN = -1
_GZIP_MAGIC = b"\x1f\x8b"
_LONGEST_LINE = 1 << 16
"""Characters of a line; a longer line is no job, and is never read whole."""


class BrokenTrace(FairleadError):
    """A trace that cannot be read; the text names file, line and reason."""


class Tenants(StrEnum):
    """The field of a job that names its tenant."""

    USER = "user"
    GROUP = "group"


class TraceJob(NamedTuple):
    """One job of a trace. Times are seconds; `run` is 0 if unknown, `user` and `group` are None if
    unknown."""

    number: int
    submit: float
    run: float
    user: int | None
    group: int | None

    def tenant(self, by: Tenants) -> str:
        """Return the tenant of the job, as a fairness key."""
        owner = self.user if by is Tenants.USER else self.group
        return f"{by}-{'unknown' if owner is None else owner}"


class BadLine(NamedTuple):
    """A line that is no job."""

    number: int
    reason: str


@dataclass(frozen=True)
class TraceSurvey:
    """Counts from a first reading of a trace."""

    jobs: int
    bad_lines: int
    first_submit: float
    longest_run: float
    tenants: dict[str, int]
    """Jobs of each tenant, the heaviest tenant first."""

    @property
    def heaviest(self) -> str:
        """The tenant with the most jobs."""
        return next(iter(self.tenants))

    @property
    def median(self) -> str:
        """The tenant in the middle, by number of jobs."""
        return list(self.tenants)[len(self.tenants) // 2]


def read_trace(path: Path, on_bad: Callable[[BadLine], None] | None = None) -> Iterator[TraceJob]:
    """Return the jobs of a trace, plain or gzipped, in the order of the file.

    A bad line is passed to `on_bad`; without `on_bad`, raise BrokenTrace. An unreadable or
    truncated file raises BrokenTrace in any case.
    """
    number = 0
    try:
        with _open(path) as lines:
            while line := lines.readline(_LONGEST_LINE):
                number += 1
                text = line.strip()
                if not line.endswith("\n") and len(line) == _LONGEST_LINE:
                    reason = f"longer than {_LONGEST_LINE:,} characters"
                    while line and not line.endswith("\n"):
                        line = lines.readline(_LONGEST_LINE)
                elif not text or text.startswith(";"):
                    continue
                else:
                    job = parse_job(text)
                    if isinstance(job, TraceJob):
                        yield job
                        continue
                    reason = job
                if on_bad is None:
                    raise BrokenTrace(
                        f"{path}, line {number}: {reason}; --skip-bad leaves such lines out"
                    )
                on_bad(BadLine(number, reason))
    except (OSError, EOFError, zlib.error) as error:
        where = f" after line {number}" if number else ""
        raise BrokenTrace(
            f"cannot read {path}{where}: {getattr(error, 'strerror', None) or error}"
        ) from error


def first_jobs(path: Path, limit: int | None) -> list[TraceJob]:
    """Return the first `limit` jobs of a trace, at least one. Raise BrokenTrace if the trace cannot
    be read, ConfigurationError if it has no job."""
    jobs = list(islice(read_trace(path), limit))
    if not jobs:
        raise ConfigurationError(
            f"{path} holds no job; see `fairlead replay --help` for the format"
        )
    return jobs


def parse_job(text: str) -> TraceJob | str:
    """Return the job of one line, or the reason why the line is no job."""
    fields = text.split()
    if len(fields) != FIELDS:
        return f"it has {len(fields)} fields, not {FIELDS}"
    for index, name in _NAMES.items():
        if not _is_number(fields[index], whole=index not in (_SUBMIT, _RUN)):
            return f"field {index + 1} ({name}) is {fields[index][:40]!r}, not a number"
    job, submit, run = int(fields[_JOB]), float(fields[_SUBMIT]), float(fields[_RUN])
    user, group = int(fields[_USER]), int(fields[_GROUP])
    if job < 0:
        return f"field {_JOB + 1} (job number) is {job}: use 0 or more"
    if submit < 0:
        return f"field {_SUBMIT + 1} (submit time) is {fields[_SUBMIT]}: use 0 or more"
    return TraceJob(
        job,
        submit,
        max(0.0, run),
        None if user == _UNKNOWN else user,
        None if group == _UNKNOWN else group,
    )


def survey(
    path: Path, tenants: Tenants, limit: int | None = None, skip_bad: bool = False
) -> TraceSurvey:
    """Read a trace, or its first `limit` jobs, and count. Raise BrokenTrace if the trace cannot be
    read or has no job."""
    bad_lines: list[int] = [0]

    def count_bad(_line: BadLine) -> None:
        bad_lines[0] += 1

    counts: Counter[str] = Counter()
    first, longest = math.inf, 0.0
    for job in islice(read_trace(path, count_bad if skip_bad else None), limit):
        counts[job.tenant(tenants)] += 1
        first = min(first, job.submit)
        longest = max(longest, job.run)
    if not counts:
        raise BrokenTrace(f"{path} holds no job ({bad_lines[0]} bad lines)")
    heaviest_first = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return TraceSurvey(counts.total(), bad_lines[0], first, longest, heaviest_first)


def _open(path: Path) -> IO[str]:
    with path.open("rb") as file:
        is_gzip = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    # Comments hold names in any encoding. A job is ASCII, so an undecodable character shows up as a
    # bad field.
    if is_gzip:
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")


def _is_number(text: str, whole: bool) -> bool:
    if not text.isascii() or len(text) > 30 or "_" in text:
        return False
    try:
        return math.isfinite(int(text) if whole else float(text))
    except ValueError:
        return False
