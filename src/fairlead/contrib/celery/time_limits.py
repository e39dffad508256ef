"""Time limits inside a thread: an exception raised between two steps of its Python code."""

from __future__ import annotations

import ctypes
import threading
from types import TracebackType


class TimeLimit:
    """Raises `error` in the current thread after `seconds`. A call into C, such as a wait for the
    network, is not interrupted; the exception comes when the call returns."""

    def __init__(self, seconds: float | None, error: type[Exception]) -> None:
        self._error = error
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._is_over = False
        self._is_raised = False
        self._timer = None if seconds is None else threading.Timer(seconds, self._raise)

    def __enter__(self) -> TimeLimit:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._is_raised and not isinstance(error, self._error):
                _set_exception(self._thread, None)  # one that did not come in time

    def _raise(self) -> None:
        with self._lock:
            if not self._is_over:
                self._is_raised = True
                _set_exception(self._thread, self._error)


def _set_exception(thread: int, error: type[Exception] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if error is None else ctypes.py_object(error)
    )
