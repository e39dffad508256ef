"""Log lines of a task are bounded for one response; those of the latest runs are shown."""

from __future__ import annotations

from fairlead.model import LogLine, Progress, RunNotes
from fairlead.web.run_logs import MOST_LOG_CHARS, latest_progress, shown_logs


def run(attempt: int, chars: int, progress: Progress | None = None) -> RunNotes:
    lines = (LogLine(0, "INFO", "shop", "x" * chars),) if chars else ()
    return RunNotes(attempt, progress, lines)


def test_the_latest_runs_with_lines_are_shown_first_to_last() -> None:
    half = MOST_LOG_CHARS // 2
    notes = [run(1, 1), run(2, half), run(3, 0), run(4, half)]
    assert shown_logs(notes) == ([notes[1], notes[3]], 1)
    assert shown_logs([]) == ([], 0)
    assert shown_logs([run(1, 0)]) == ([], 0)


def test_the_latest_run_is_shown_whatever_its_length() -> None:
    notes = [run(1, 1), run(2, MOST_LOG_CHARS + 1)]
    assert shown_logs(notes) == ([notes[1]], 1)


def test_progress_is_that_of_the_latest_run_that_reported_any() -> None:
    reported = Progress(1, 2, None, 5, 1)
    assert latest_progress([run(1, 0, reported), run(2, 3)]) is reported
    assert latest_progress([]) is None
