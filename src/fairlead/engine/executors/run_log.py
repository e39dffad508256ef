"""Log lines of runs: a logging handler that gives each line to the run in whose context it was
logged, if its task keeps its log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fairlead.declare.current import current_run
from fairlead.forks import free_when_forked


class _Collector(logging.Handler):
    """Handler of the root logger, so that every logger's level and handlers stay as they are."""

    def emit(self, record: logging.LogRecord) -> None:
        if (run := current_run()) is not None and (kept := run.current.notes.log) is not None:
            try:
                kept.add(record)
            except Exception:  # the arguments of a line may not fit its text
                self.handleError(record)
        last_resort = logging.lastResort
        if last_resort is not None and record.levelno >= last_resort.level and _is_alone(record):
            last_resort.handle(record)  # logging does so unless there is any handler


def _is_alone(record: logging.LogRecord) -> bool:
    """Return whether no other handler gets the record."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None:
        if any(handler is not _collector for handler in logger.handlers):
            return False
        logger = logger.parent if logger.propagate else None
    return True


_collector = _Collector()
_lock = free_when_forked(threading.Lock())
_users = 0


@contextmanager
def collecting(is_wanted: bool) -> Iterator[None]:
    """Collect log lines inside the block, for all nodes of this process; do nothing unless it is
    wanted."""
    global _users
    if not is_wanted:
        yield
        return
    with _lock:
        _users += 1
        logging.getLogger().addHandler(_collector)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                logging.getLogger().removeHandler(_collector)
