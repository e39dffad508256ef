"""Commands that move an ordered queue to another number of partitions, killed, stopped and run
twice at once, while another process submits."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead.operate.ordered import OrderedPartitionView
from fairlead.testing import running, settled
from tests import tiers
from tests.end_to_end.workers import ROOT
from tests.integration.ordered_kit import SOON, Kit, open_app

QUEUE = "reminders"
SHOP = """
import os, sys, time
from itertools import count
import fairlead
from fairlead.ordered import repartition
from fairlead.submit import ordered as submits

# As short as fits: a killed command leaves its leases behind.
repartition.LEASE_SECONDS = 1.0
repartition.LAYOUT_SECONDS = repartition._MARGIN_SECONDS = 0.5
repartition._RETRY_SECONDS = 0.1
submits.LAYOUT_SECONDS = 0.3

app = fairlead.App(os.environ["SHOP_URL"])
app.queue("reminders", kind="ordered", partitions=int(os.environ["SHOP_PARTITIONS"]))

@app.task(queue="reminders")
async def remind(name: str) -> None: ...

if __name__ == "__main__":
    for n in count():
        remind.options(ordering_key=f"k{n % 12}").submit(name=str(n)).result()
        print(n, flush=True)
        time.sleep(0.01)
"""


class Shop:
    """Processes of one application with an ordered queue."""

    def __init__(self, folder: Path, url: str) -> None:
        (folder / "moved_shop.py").write_text(SHOP)
        self.folder, self.url = folder, url
        self.processes: list[subprocess.Popen[str]] = []
        self.kit = open_app(url, partitions=4)
        self.kit.submit("first", "first")

    def start(self, *words: str, partitions: int = 4) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "SHOP_URL": self.url,
            "SHOP_PARTITIONS": str(partitions),
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{self.folder}",
        }
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def move(self, partitions: int) -> subprocess.Popen[str]:
        words = (QUEUE, "--app", "moved_shop:app", "--to", str(partitions), "--yes", "--json")
        return self.start("-m", "fairlead", "ordered", "repartition", *words)

    @contextmanager
    def submitting(self) -> Iterator[list[str]]:
        """Submit in another process until the end of the block, after which the list has the names
        of the tasks."""
        names: list[str] = []
        process = self.start(str(self.folder / "moved_shop.py"))
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield names
        finally:
            process.send_signal(signal.SIGINT)
            told, _ = process.communicate(timeout=SOON)
            names += [str(n) for n in range(int(told.split()[-1]) + 1)]

    async def statuses(self) -> list[OrderedPartitionView]:
        return await self.kit.app.management.ordered.status(QUEUE)

    async def run_all(self, partitions: int, names: list[str]) -> None:
        """Run every task by a worker that starts now; check that each ran once, in order."""
        kit = open_app(self.url, partitions=partitions)
        async with running(kit.app) as node:
            await settled(kit.app, node, SOON)
        _check(kit, names)
        kit.app.close()


def _check(kit: Kit, names: list[str]) -> None:
    ran = kit.runs.names
    # The submitter is stopped after a submit, or between a submit and its message.
    more = [str(len(names))] if str(len(names)) in ran else []
    assert sorted(ran) == sorted([*names, *more, "first"])
    for key in range(12):
        mine = [int(name) for name in ran if name != "first" and int(name) % 12 == key]
        assert mine == sorted(mine), f"k{key}"


@pytest.fixture
def shop(store_url: str, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, store_url)
    yield shop
    for process in shop.processes:
        process.kill()
        process.communicate()
    shop.kit.app.close()


def _ended(process: subprocess.Popen[str], code: int = 0) -> dict[str, Any]:
    out, err = process.communicate(timeout=SOON)
    assert process.returncode == code, err
    return dict(json.loads(out)) if code == 0 else {"error": err}


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=tiers.NIGHTLY("a long run"))])
async def test_killed_moves_lose_no_task_run_none_twice_and_keep_the_order_of_keys(
    shop: Shop, kills: int
) -> None:
    seed = tiers.seed()
    print(f"seed {seed}")
    chance = random.Random(seed)
    with shop.submitting() as names:
        began = time.monotonic()
        _ended(shop.move(8))
        most = time.monotonic() - began
        sealed = 0
        for _ in range(kills):
            process = shop.move(chance.choice((1, 3, 5, 8)))
            try:
                process.wait(chance.uniform(most / 4, most * 1.2))
            except subprocess.TimeoutExpired:
                process.kill()
            process.communicate()
            sealed += any(view.moving_to for view in await shop.statuses())
        _ended(shop.move(5))
    assert sealed > 0 or kills < 20
    await shop.run_all(5, names)


async def test_an_interrupted_move_ends_without_a_traceback_and_releases_its_leases(
    shop: Shop,
) -> None:
    with shop.submitting() as names:
        # On a busy machine a move may end before it is seen or stopped.
        for partitions in [8, 5] * 10:
            process = shop.move(partitions)
            while process.poll() is None and not any(
                view.moving_to for view in await shop.statuses()
            ):
                pass
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=SOON)
            if process.returncode:
                break
        assert process.returncode == 130, err
        assert "Traceback" not in err
        assert await shop.kit.app.connections.coordinator.owners() == {}
        _ended(shop.move(3))
    await shop.run_all(3, names)
