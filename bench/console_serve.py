"""Serve the console of `console_app`, and count its statements on SQLite in a shared file.

python bench/console_serve.py FILE OPTIONS: FILE has eight bytes, a little-endian number; OPTIONS
are those of `fairlead web`.
"""

from __future__ import annotations

import mmap
import struct
import sys
import threading
from typing import Any

from fairlead.__main__ import main
from fairlead.backends.sqlite.database import SqliteDatabase


def count_into(path: str) -> None:
    """Count the statements of all connections that are opened from now on."""
    with open(path, "r+b") as file:
        shared = mmap.mmap(file.fileno(), 8)
    lock = threading.Lock()
    number = 0
    connect = SqliteDatabase.connect

    def count(_statement: str) -> None:
        nonlocal number
        with lock:
            number += 1
            shared[:8] = struct.pack("<q", number)

    def traced(self: SqliteDatabase, *given: Any, **named: Any) -> Any:
        connection = connect(self, *given, **named)
        connection.set_trace_callback(count)
        return connection

    SqliteDatabase.connect = traced  # type: ignore[method-assign]


if __name__ == "__main__":
    path = sys.argv.pop(1)
    count_into(path)
    sys.argv[1:1] = ["web"]
    main()
