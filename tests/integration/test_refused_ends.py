"""Ends of runs and claims that a trigger of the user refuses, on SQLite: all others go on."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairlead import App
from fairlead.engine import claimers, reconciler
from fairlead.errors import StoreUnavailable
from fairlead.model import ClaimedTask, Trigger
from fairlead.testing import running
from tests.waiting import until

REFUSAL = """
CREATE TABLE refused (ordering_key TEXT);
INSERT INTO refused VALUES ('bad');
CREATE TRIGGER refusal BEFORE INSERT ON fairlead_attempts
WHEN EXISTS (SELECT 1 FROM refused r WHERE r.ordering_key = NEW.ordering_key)
BEGIN SELECT RAISE(ABORT, 'no changes before Monday'); END;
"""


@pytest.mark.asyncio
async def test_a_worker_stops_at_once_and_names_the_end_that_it_could_not_write(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app, ran = App(sqlite_url), list[str]()
    app.migrate()

    @app.task
    async def note(key: str) -> None:
        ran.append(key)

    with sqlite3.connect(tmp_path / "tasks.db", isolation_level=None, timeout=30) as admin:
        admin.executescript(REFUSAL)
        bad = note.options(ordering_key="bad").submit(key="bad")
        async with running(app, drain=3600.0):
            await until(lambda: any("the store refuses" in each.message for each in caplog.records))
        (line,) = [record for record in caplog.records if "unwritten" in record.message]
        assert vars(line)["refused"] == [bad.id]
        admin.execute("DELETE FROM refused")
    async with running(app):
        await until(lambda: ran == ["bad", "bad"])
    app.close()


REFUSED_CLAIM = """
CREATE TABLE refused (fairness_key TEXT);
INSERT INTO refused VALUES ('bad');
CREATE TRIGGER refusal BEFORE UPDATE OF state ON fairlead_tasks
WHEN NEW.state = 'PROCESSING' AND NEW.fairness_key IN (SELECT fairness_key FROM refused)
BEGIN SELECT RAISE(ABORT, 'no changes before Monday'); END;
"""


@pytest.mark.asyncio
@pytest.mark.parametrize("has_keys", [False, True], ids=["without ordering keys", "with them"])
@pytest.mark.parametrize("order", ["fair", "fifo"])
async def test_a_trigger_that_refuses_some_claims_holds_back_no_other_task(
    sqlite_url: str,
    tmp_path: Path,
    order: str,
    has_keys: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(claimers, "RETRY_CLAIM", 1.0)
    app, ran = App(sqlite_url), list[tuple[str, int]]()
    app.queue("work", order=order, partitions=1)
    app.migrate()

    @app.task(queue="work")
    async def note(key: str, n: int) -> None:
        ran.append((key, n))

    with sqlite3.connect(tmp_path / "tasks.db", isolation_level=None, timeout=30) as admin:
        admin.executescript(REFUSED_CLAIM)
        async with running(app, concurrency=3):
            for n in range(4):
                for key in ("bad", *"abcdefgh"):
                    ordering_key = key if has_keys else None
                    note.options(fairness_key=key, ordering_key=ordering_key).submit(key=key, n=n)
            await until(lambda: len(ran) == 32)
            assert "bad" not in {key for key, _ in ran}
            lines = [each for each in caplog.records if "the store refuses" in each.message]
            assert len(lines) == 1 and "no changes before Monday" in vars(lines[0])["error"]
            admin.execute("DELETE FROM refused")
            await until(lambda: len(ran) == 36)
    assert sorted(ran) == sorted((key, n) for key in ("bad", *"abcdefgh") for n in range(4))
    if has_keys:
        assert [n for key, n in ran if key == "bad"] == [0, 1, 2, 3]
    app.close()


@pytest.mark.asyncio
async def test_tasks_that_the_store_does_not_take_back_stop_no_worker_and_no_other_task(
    sqlite_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, ran, keys = App(sqlite_url), list[str](), ["bad", *"abc"]
    app.migrate()

    @app.task
    async def note(key: str) -> None:
        ran.append(key)

    monkeypatch.setattr(reconciler, "LATE_SECONDS", 0.3)
    claim, lost = app.store.claim, set[str]()

    async def lose_first(node: str, triggers: Sequence[Trigger], *more: Any) -> list[ClaimedTask]:
        claimed = await claim(node, triggers, *more)
        if lost.issuperset(each.id for each in triggers):
            return claimed
        lost.update(each.id for each in triggers)
        raise StoreUnavailable("the response to the claim was lost")

    monkeypatch.setattr(app.store, "claim", lose_first)
    with sqlite3.connect(tmp_path / "tasks.db", isolation_level=None, timeout=30) as admin:
        admin.executescript(
            "CREATE TABLE refused (fairness_key TEXT);"
            "INSERT INTO refused VALUES ('bad');"
            "CREATE TRIGGER refusal BEFORE UPDATE ON fairlead_tasks"
            " WHEN OLD.state = 'PROCESSING' AND NEW.state = 'SUBMITTED'"
            " AND EXISTS (SELECT 1 FROM refused r WHERE r.fairness_key = NEW.fairness_key)"
            " BEGIN SELECT RAISE(ABORT, 'no changes before Monday'); END;"
        )
        app.submit_many([note.options(fairness_key=key).draft(key=key) for key in keys])
        node = app.node(drain=1.0)
        working = asyncio.create_task(node.run())
        await until(lambda: working.done() or sorted(ran) == ["a", "b", "c"])
        assert not working.done(), working.exception()
        (refused,) = [record for record in caplog.records if "the store refuses" in record.message]
        assert "no changes before Monday" in vars(refused)["error"]
        assert node.parts.reconciler.is_requested  # the node stays registered until then
        admin.execute("DELETE FROM refused")
        await until(lambda: working.done() or "bad" in ran)
        await until(lambda: not node.parts.reconciler.is_requested)
        node.stop()
        await working
    app.close()
