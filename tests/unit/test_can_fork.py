"""A process forks although a thread of it is just ending, and not beside one that stays."""

import subprocess
import sys

import pytest

SCRIPT = """
import threading
from fairlead.supervisor.processes import can_fork
going = threading.Event()
threading.Thread(target=going.wait, daemon=True).start()
if {ends}:
    threading.Timer(0.1, going.set).start()
print(can_fork())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="workers fork on Linux only")
@pytest.mark.parametrize("ends", [True, False])
def test_a_thread_that_ends_does_not_keep_a_process_from_forking(ends: bool) -> None:
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", SCRIPT.format(ends=ends)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(ends)
