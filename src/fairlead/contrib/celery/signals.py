"""Signals that Celery's projects connect to, sent at the same points."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("fairlead.celery")


class Signal:
    """A signal with receivers. An exception of a receiver is logged and changes nothing else."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.receivers: list[tuple[Any, Any, Callable[..., Any]]] = []

    def connect(
        self, *args: Any, sender: Any = None, dispatch_uid: Any = None, **options: Any
    ) -> Any:
        """Connect a receiver, once for a `dispatch_uid`; also used as a decorator, with or without
        `sender`. `weak` is accepted."""
        wanted = args[1] if len(args) > 1 else sender

        def register(receiver: Callable[..., Any]) -> Callable[..., Any]:
            key = receiver if dispatch_uid is None else dispatch_uid
            if not any((wanted, key) == each[:2] for each in self.receivers):
                self.receivers.append((wanted, key, receiver))
            if instead := NEVER_SENT.get(self.name):
                log.warning(
                    "a signal is never sent", extra={"signal": self.name, "instead": instead}
                )
            return receiver

        return register(args[0]) if args and callable(args[0]) else register

    def disconnect(
        self, receiver: Any = None, sender: Any = None, weak: Any = None, dispatch_uid: Any = None
    ) -> bool:
        """Remove a receiver; return whether it was connected."""
        key = receiver if dispatch_uid is None else dispatch_uid
        kept = [each for each in self.receivers if each[:2] != (sender, key)]
        is_removed = len(kept) < len(self.receivers)
        self.receivers = kept
        return is_removed

    def send(self, sender: Any, **named: Any) -> list[tuple[Any, Any]]:
        """Call the receivers for this sender; return pairs (receiver, result or exception)."""
        results = []
        for wanted, _, receiver in list(self.receivers):
            if wanted is not None and wanted not in (sender, getattr(sender, "name", None)):
                continue
            try:
                result = receiver(signal=self, sender=sender, **named)
            except Exception as error:
                log.exception("a receiver raised an exception", extra={"signal": self.name})
                result = error
            results.append((receiver, result))
        return results

    send_robust = send


before_task_publish = Signal("before_task_publish")
after_task_publish = Signal("after_task_publish")
task_prerun = Signal("task_prerun")
task_postrun = Signal("task_postrun")
task_success = Signal("task_success")
task_failure = Signal("task_failure")
task_retry = Signal("task_retry")
task_revoked = Signal("task_revoked")
worker_init = Signal("worker_init")
worker_ready = Signal("worker_ready")
worker_shutdown = Signal("worker_shutdown")
worker_process_init = Signal("worker_process_init")
celeryd_init = Signal("celeryd_init")
worker_process_shutdown = Signal("worker_process_shutdown")
worker_shutting_down = Signal("worker_shutting_down")
worker_before_create_process = Signal("worker_before_create_process")
celeryd_after_setup = Signal("celeryd_after_setup")
setup_logging = Signal("setup_logging")
after_setup_logger = Signal("after_setup_logger")
after_setup_task_logger = Signal("after_setup_task_logger")
task_received = Signal("task_received")
task_rejected = Signal("task_rejected")
task_unknown = Signal("task_unknown")
task_internal_error = Signal("task_internal_error")
task_sent = Signal("task_sent")
beat_init = Signal("beat_init")
beat_embedded_init = Signal("beat_embedded_init")
import_modules = Signal("import_modules")
heartbeat_sent = Signal("heartbeat_sent")
user_preload_options = Signal("user_preload_options")

_LOGGING = "configure logging with --log-level, --log-format or your own code"
_END = "use atexit, or an interceptor"
NEVER_SENT = {
    "setup_logging": _LOGGING,
    "after_setup_logger": "configure logging where the App is made",
    "after_setup_task_logger": "configure logging where the App is made",
    "worker_shutdown": _END,
    "worker_shutting_down": _END,
    "worker_process_shutdown": _END,
    "worker_before_create_process": "use worker_process_init",
    "celeryd_after_setup": "use worker_init",
    "task_received": "use task_prerun",
    "task_rejected": "use task_postrun, whose state is REJECTED",
    "task_unknown": "use on_incident of fairlead.App",
    "task_internal_error": "use on_incident of fairlead.App",
    "task_sent": "use after_task_publish",
    "beat_init": "use worker_init",
    "beat_embedded_init": "use worker_init",
    "import_modules": "use app.on_after_finalize",
    "heartbeat_sent": "use the console or the metrics of the workers",
    "user_preload_options": "use settings, or the environment",
}
"""Signals that can be connected but are never sent, and what to use instead."""
