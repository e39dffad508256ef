"""Real workers of tasks that live in Redis alone, killed while they work."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("redis", reason="needs the extra redis")
from fairlead import App  # noqa: E402
from tests.end_to_end.test_kill import judge, wait_until_finished  # noqa: E402
from tests.end_to_end.workers import Crew  # noqa: E402


def test_kill_9_loses_no_task_of_redis_alone_and_repeats_only_what_was_in_flight(
    redis_url: str, tmp_path: Path
) -> None:
    url = f"{redis_url}?reclaim=2"
    app = App(url)

    @app.task(queue="crash")
    async def work(n: int) -> None: ...

    numbers = range(4000)
    with Crew(url, tmp_path, 3, application="redis_app:app") as crew:
        for tenant in range(4):
            some = [{"n": n} for n in numbers if n % 4 == tenant]
            work.options(fairness_key=f"tenant {tenant}").submit_many(some)
        for _ in range(4):
            time.sleep(1)  # let the workers claim tasks, so that the kill hits runs
            crew.kill_one()
        wait_until_finished(app, crew)
    judge(crew, numbers)
    assert app.management.queues()[0].error == 0
    app.close()
