"""Cluster-wide limits, observed from outside, while workers are killed and stopped for longer than
their permits last."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead import App, ClusterLimit, LimitTree
from services.zookeeper import ZooKeeperServer
from tests.end_to_end.limited import Limited
from tests.end_to_end.limited_app import ACME, PAYOUTS, TOTAL
from tests.tiers import matrix


def fill(url: str, each: int) -> None:
    """Submit `each` tasks of both names and each of four keys."""
    app = App(url)
    app.migrate()
    app.queue("limited", partitions=6, concurrency=LimitTree(ClusterLimit(TOTAL)))
    for name in ("payout", "mail"):

        @app.task(queue="limited", name=name)
        async def task(n: int) -> None: ...

        for key in ("acme", "x", "y", "z"):
            task.options(fairness_key=key).submit_many([{"n": n} for n in range(each)])
    app.close()


@pytest.mark.parametrize("kind", matrix("sqlite", "postgres", "zookeeper"))
def test_no_level_is_exceeded_whichever_workers_die_or_are_stopped(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = request.getfixturevalue("postgres_url" if kind == "postgres" else "sqlite_url")
    fill(url, 1000)
    if kind == "zookeeper":
        with ZooKeeperServer() as server:
            seen = Limited(url, server.url, tmp_path, 3, permit_seconds=4.0).run(
                20.0, 8.0, server.restart
            )
    else:
        seen = Limited(url, None, tmp_path, 3, permit_seconds=4.0).run(20.0, 8.0)
    print(seen, os.linesep, (tmp_path / "limited.log").read_text()[-2000:])
    assert seen.starts > 100 and seen.kills + seen.stops > 2 and seen.most["total"] > PAYOUTS, seen
    assert (
        seen.most["total"] <= TOTAL and seen.most["payout"] <= PAYOUTS and seen.most["acme"] <= ACME
    ), seen
