"""The worker that watches the queues is killed with SIGKILL: another one watches on, and each incident
is delivered once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from fairlead import App, NoRetry
from fairlead.operate.doctor.survey import take_survey
from tests.end_to_end.workers import ROOT

PATIENCE = 90.0  # timeout in seconds


@pytest.fixture
def workers(
    store_url: str, tmp_path: Path
) -> Iterator[tuple[dict[str, subprocess.Popen[bytes]], Path]]:
    """Yield two workers by their names, and the file of delivered incidents."""
    delivered = tmp_path / "incidents"
    delivered.touch()
    # The entry point of an installation of this tree, also where another tree is installed.
    entry = tmp_path / "watch-1.dist-info"
    entry.mkdir()
    (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: watch\nVersion: 1\n")
    (entry / "entry_points.txt").write_text(
        "[fairlead.pollers]\nwatch = fairlead.pipeline.pollers:Watch\n"
    )
    paths = [ROOT / "src", Path(__file__).parent, tmp_path]
    environment = {
        **os.environ,
        "WATCH_URL": store_url,
        "WATCH_INCIDENTS": str(delivered),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
    }
    app = App(store_url)
    app.migrate()
    app.close()
    running = {
        name: subprocess.Popen(
            [sys.executable, "-m", "fairlead", "worker", "watch_app:app", "--name", name],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=(tmp_path / f"{name}.log").open("wb"),
        )
        for name in ("a", "b")
    }
    yield running, delivered
    for process in running.values():
        process.kill()
        process.wait()


def test_a_burst_is_reported_once_also_after_the_watching_worker_was_killed(
    store_url: str, workers: tuple[dict[str, subprocess.Popen[bytes]], Path]
) -> None:
    running, delivered = workers
    app = App(store_url)

    @app.task(queue="one", retry=NoRetry())
    def fail() -> None: ...

    @app.task(queue="two", retry=NoRetry())
    def fail_again() -> None: ...

    def bursts() -> Counter[str]:
        lines = map(json.loads, delivered.read_text().splitlines())
        return Counter(subject for kind, subject in lines if kind == "error_burst")

    def wait_for(subject: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not bursts()[subject]:
            assert time.monotonic() < deadline, delivered.read_text()[-2000:]
            time.sleep(0.2)

    fail.submit_many([{}] * 40)
    wait_for("one")
    leases = asyncio.run(take_survey(app.operate_context, None)).leases
    assert isinstance(leases, Mapping)
    [watching] = [node for name, node in leases.items() if name.endswith("watch")]
    victim = running[watching.partition("#")[0]]
    victim.kill()
    victim.wait()
    fail_again.submit_many([{}] * 40)
    wait_for("two")
    assert bursts() == {"one": 1, "two": 1}
    app.close()
