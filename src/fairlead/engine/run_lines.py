"""Log lines about the ends of runs, one for each run."""

from __future__ import annotations

import logging

from fairlead.clock import MICROS
from fairlead.engine.execution import Execution
from fairlead.errors import Snooze
from fairlead.model import Finish, State

log = logging.getLogger("fairlead.runs")

_SNOOZE = f"{Snooze.__module__}.{Snooze.__qualname__}"


def log_end(execution: Execution, finish: Finish, log_runs: bool) -> None:
    """Log how a run ended: at ERROR with its traceback if the task needs a person, at INFO if it
    failed and the task runs again, else at DEBUG, or with `log_runs` at INFO."""
    has_failed = finish.error_type not in (None, _SNOOZE)
    level, event = logging.DEBUG, "run ended"
    if finish.next_state == State.ERROR:
        level, event = logging.ERROR, "task needs a person"
    elif has_failed:
        level, event = logging.INFO, "run failed; the task runs again"
    elif log_runs:
        level = logging.INFO
    if not log.isEnabledFor(level):
        return
    trigger, ended_at = execution.trigger, finish.finished_at
    fields: dict[str, object] = {
        "task_id": finish.id,
        "task_name": trigger.name,
        "queue": trigger.queue,
        "attempt": execution.claimed.attempt,
        "outcome": str(finish.outcome),
        "seconds": (ended_at - (finish.started_at or ended_at)) / MICROS,
    }
    if finish.run_at is not None:
        fields["retry_in"] = max(0, finish.run_at - ended_at) / MICROS
    text = finish.error_text or ""
    if has_failed:
        fields |= {"error_type": finish.error_type, "error": text.partition("\n")[0]}
    record = log.makeRecord(log.name, level, __file__, 0, event, (), None, extra=fields)
    if level == logging.ERROR:
        # On further lines, which formatters print that know nothing of our fields.
        record.exc_text = f"{finish.error_type}: {text}".rstrip()
    log.handle(record)
