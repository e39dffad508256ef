"""Log lines of a worker: one event and its fields per line. Every line of a run has the context of
its task."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import msgspec

from fairlead.core.visible import LINES, visible
from fairlead.declare.current import ContextFilter

_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", None, None))) | {
    "message",
    "asctime",
    "taskName",
}


_REPEATING = ("django_tasks", "django.tasks")
"""Loggers whose lines repeat what ours say of each run."""


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


class TextFormatter(logging.Formatter):
    """Lines of the form `time level logger event key=value ...`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, with its exception on further lines."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = "".join(
            f" {key}={value!r}" if " " in str(value) else f" {key}={value}"
            for key, value in _fields(record).items()
        )
        line = visible(
            f"{moment}.{int(record.msecs):03d}Z {record.levelname.lower()} {record.name}"
            f" {record.getMessage()}{fields}"
        )
        if record.exc_info:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line += f"\n{visible(record.exc_text, keep=LINES)}"
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON object of a record."""
        event = {
            "time": (
                time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
                + f".{int(record.msecs):03d}Z"
            ),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            event["exception"] = record.exc_text
        try:
            return msgspec.json.encode(event, enc_hook=repr).decode()
        except UnicodeEncodeError:  # half of a pair of surrogates, as in the name of a file
            return visible(json.dumps(event, ensure_ascii=False, default=repr))


def configure(level: str, log_format: str) -> None:
    """Send all log records to stderr in this format, but those that repeat ours. Above debug, leave
    out the lines at INFO of libraries that write one for each request or task."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.addFilter(ContextFilter())
    handler.addFilter(lambda record: record.name not in _REPEATING)
    for name in () if level == "debug" else ("httpx", *_REPEATING):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def name_node(node: str) -> None:
    """Put the name of this process's node on every log record from now on."""

    def add(record: logging.LogRecord) -> bool:
        if not hasattr(record, "node"):
            record.node = node
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(add)
