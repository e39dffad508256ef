"""A test run shares one server of each kind, and removes them at its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from services.zookeeper import ZooKeeperServer
from tests import servers
from tests.unit.test_services import ROOT, until_gone
from tests.waiting import wait_until

RUN = """
from tests import servers
host = servers.Host()
print(servers.running("zookeeper").pid, servers.running("zookeeper").folder, flush=True)
if input() == "close":
    host.close()
"""


def test_every_process_of_a_test_run_gets_the_same_server(
    zookeeper_server: ZooKeeperServer,
) -> None:
    program = "from tests import servers; print(servers.running('zookeeper').pid)"
    other = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(other.stdout) == zookeeper_server.pid == servers.running("zookeeper").pid


@pytest.mark.usefixtures("zookeeper_server")  # skips the test without ZooKeeper
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_the_servers_of_a_test_run_end_with_it_and_leave_no_files(end: str) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", RUN],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdin is not None and run.stdout is not None
    with run.stdin, run.stdout:
        pid, folder = run.stdout.readline().split()
        assert Path(folder).is_dir()
        if end == "killed":
            run.kill()
        else:
            run.stdin.write("close\n")
            run.stdin.flush()
        run.wait(60)
    assert until_gone(int(pid))
    wait_until(lambda: not Path(folder).exists())
