"""A rolling deploy: workers of a new version replace those of the old one, one by one, under
load."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from pathlib import Path

from fairlead import App, State
from tests.end_to_end.deploy_app import application
from tests.end_to_end.workers import Crew
from tests.waiting import wait_until

RATE = 200
"""Tasks per second."""
PATIENCE = 60.0
"""Seconds until a worker must have started, or all tasks ended."""


class Load:
    """Tasks of one version at a time, submitted by a thread."""

    def __init__(self, url: str) -> None:
        self._versions = {version: application(version, url) for version in ("old", "new")}
        self._current = "old"
        self._numbers = itertools.count()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.names: dict[int, str] = {}

    @property
    def app(self) -> App:
        return self._versions["new"][0]

    def start(self) -> None:
        self._thread.start()

    def deploy(self) -> None:
        """Submit as the new version from now on."""
        self._current = "new"

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()

    def close(self) -> None:
        for app, _ in self._versions.values():
            app.close()

    def _run(self) -> None:
        while not self._ends.wait(0.05):
            _, tasks = self._versions[self._current]
            for name in ("work", "removed", "added"):
                if name in tasks:
                    numbers = [next(self._numbers) for _ in range(RATE // 40)]
                    self.names |= dict.fromkeys(numbers, name)
                    tasks[name].submit_many([{"n": number} for number in numbers])


def test_a_rolling_deploy_under_load_loses_repeats_and_fails_nothing(
    store_url: str, tmp_path: Path
) -> None:
    load = Load(store_url)
    load.app.migrate()
    with Crew(store_url, tmp_path, 3, application="tests.end_to_end.deploy_app:old") as crew:
        wait_until(lambda: crew.started == 3)
        load.start()
        time.sleep(1.0)
        load.deploy()
        crew.application = "tests.end_to_end.deploy_app:new"
        for number, outgoing in enumerate(list(crew.processes)):
            crew.processes.append(crew.start())
            wait_until(lambda started=4 + number: crew.started == started)  # type: ignore[misc]
            outgoing.send_signal(signal.SIGTERM)
            assert outgoing.wait(PATIENCE) == 0
            time.sleep(0.5)
        time.sleep(1.0)
        load.stop()
        store = load.app.store
        wait_until(lambda: not store.database.read_now(store.unfinished(["default"]))[0])
        periodic = load.app.management.periodic.list()
    runs = crew.runs()
    runs.pop(-1, None)
    assert {"work", "removed", "added"} == set(load.names.values())
    lost = {n: name for n, name in load.names.items() if n not in runs}
    assert lost == {}
    assert {n: those for n, those in runs.items() if len(those) > 1} == {}
    assert load.app.management.find(state=State.ERROR) == []
    assert [each.record.name for each in periodic] == ["tick"]
    load.close()
