"""The work of a measured no-op task: count itself and note when it ran, in one file per process.
The benchmarks of other task queues have a probe that does the same. This file is used if their
folder is missing."""

import os
import pathlib
import time
from typing import TextIO

_out: TextIO | None = None
_count = 0


def ran(enqueued_at: float | None) -> None:
    """Record one run. `enqueued_at`: a time.time() stamp, or None in the throughput run."""
    global _out, _count
    if _out is None:
        folder = pathlib.Path(os.environ["PROBE_DIR"])
        _out = (folder / f"{os.getpid()}.log").open("a", buffering=1)
    now = time.time()
    if enqueued_at:
        _out.write(f"L {now - enqueued_at:.6f}\n")
    else:
        _count += 1
        if _count % 50 == 0:
            _out.write(f"C {now:.6f} {_count}\n")
