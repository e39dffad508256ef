"""`fairlead pipeline tune` and `policies` as a person uses them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fairlead import App
from fairlead.cli.main import app as commands
from fairlead.clock import MICROS
from fairlead.testing.contract.tasks import FACTS
from tests.pipeline.gold_rows import GoldRows
from tests.pipeline.warehouses import lake_in

BUSY, TASKS = {"short": 400.0, "long": 1600.0}, {"short": 400, "long": 400}


class Shop:
    """A store and a lake with three hours of history up to this one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app = App(f"sqlite:///{folder / 'tasks.db'}")
        self.app.migrate()
        self._register("payouts")
        this_hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
        gold = GoldRows(lake_in(folder / "lake"))
        for hours in (3, 2, 1):
            gold.hour(this_hour - timedelta(hours=hours), BUSY, TASKS, queue="payouts")

    def _register(self, queue: str) -> None:
        """Register a queue, as its first worker does."""
        self.app.sql_store.database.run(self.app.sql_store.registration({queue: 1}))

    def hold_all_slots(self) -> None:
        """Add hours in which one of two keys sometimes held all 16 slots of the one living node."""
        self._register("mail")
        this_hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
        gold, half = GoldRows(lake_in(self.folder / "lake")), {"long": 28_800.0, "short": 28_800.0}
        for hours in (3, 2, 1):
            gold.hour(
                this_hour - timedelta(hours=hours),
                half,
                dict.fromkeys(half, 1000),
                "mail",
                demand=0.0,
                peaks={"long": 16.0, "short": 0.0},
                throughout=("short",),
            )
        asyncio.run(self._beat())

    async def _beat(self) -> None:
        # A heartbeat of the next hour, so that the node lives on while a busy machine runs the test.
        beat_at = self.app.clock.now() + 3600 * MICROS
        await self.app.store.register_node("node-1", ["mail"], [], beat_at, FACTS)
        await self.app.store.database.close_async()

    def run(self, *arguments: str, exits: int = 0) -> str:
        ran = CliRunner().invoke(commands, ["pipeline", *arguments])
        assert ran.exit_code == exits, ran.output
        return ran.output

    def run_json(self, *arguments: str) -> Any:
        """Run a command, and return its JSON output."""
        return json.loads(self.run(*arguments, "--json"))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setenv("FAIRLEAD_URL", f"sqlite:///{tmp_path / 'tasks.db'}")
    monkeypatch.setenv("FAIRLEAD_LAKE", str(tmp_path / "lake"))
    shop = Shop(tmp_path)
    yield shop
    shop.app.close()


def test_a_plan_is_shown_first_and_applied_on_request(shop: Shop) -> None:
    shown = shop.run("tune", "plan")
    assert "payouts: would be published; the declared weights stay in force" in shown
    assert "nothing was changed: this was a dry run; `tune apply` publishes" in shown
    (long,) = [line.split() for line in shown.splitlines() if line.startswith("long")]
    assert (long[1], long[3], long[4]) == ("1", "0.8", "-20.0%") and " ".join(
        long[5:]
    ) == "one step of x1.25"
    assert float(long[2]) == pytest.approx(0.4, rel=0.05)
    assert shop.app.management.weights("payouts") == {}
    done = shop.run_json("tune", "apply", "--actor", "ann")
    assert done["applied"]
    assert [queue["outcome"] for queue in done["queues"]] == ["published"]
    assert shop.app.management.weights("payouts") == {
        "long": pytest.approx(0.8),
        "short": pytest.approx(1.2),
    }
    held = shop.run("tune", "plan")
    assert (
        "payouts: held; version 1 is in force" in held
        and "version 1 is in its canary window" in held
    )


def test_limits_are_shown_with_their_changes_and_published_on_request(shop: Shop) -> None:
    shop.hold_all_slots()
    assert "limits:" not in shop.run("tune", "plan", "--queue", "mail")
    shown = shop.run("tune", "plan", "--limits", "--queue", "mail")
    assert "mail: would be published; the declared weights stay in force" in shown
    table = shown[shown.index("limits: slots of the key on each node") :]
    (long,) = [line.split() for line in table.splitlines() if line.startswith("long")]
    assert long == ["long", "none", "10", "13", "new", "one", "step", "of", "x1.25"]
    shop.run("tune", "apply", "--limits", "--queue", "mail", "--actor", "ann")
    assert shop.app.management.limits("mail") == {"long": 13}
    assert (
        "limits of 1, version 1, in its canary window"
        in CliRunner().invoke(commands, ["doctor"]).output
    )
    shown = shop.run("policies", "show", "1")
    assert "limits: slots of the key on each node" in shown and "one step of x1.25" in shown
    assert shop.run_json("policies")["policies"][0]["limits"] == {"long": 13}
    queue = CliRunner().invoke(commands, ["queues", "show", "mail"]).output
    assert [line.split() for line in queue.splitlines() if line.startswith("long")] == [
        ["long", "1", "13"]
    ]
    held = shop.run("tune", "plan", "--queue", "mail")
    assert (
        "version 1 is in its canary window" in held and "limits are computed with --limits" in held
    )
    shop.run("policies", "rollback", "0", "--queue", "mail")
    assert shop.app.management.limits("mail") == {}
    (queue,) = shop.run_json("tune", "plan", "--limits", "--queue", "mail")["queues"]
    assert queue["limits"][0]["reason"] == "held" and queue["limits"][0]["guarded"] is None


def test_versions_are_listed_shown_and_rolled_back(shop: Shop) -> None:
    assert shop.run_json("policies") == {"policies": [], "switches": []}
    shop.run("tune", "apply", "--actor", "ann")
    assert "active, in its canary window, canary queue" in shop.run("policies")
    (listed,) = shop.run_json("policies", "--queue", "payouts")["policies"]
    assert (listed["version"], listed["author"], listed["why"]) == (
        1,
        "ann",
        "shares of worker time",
    )
    assert listed["computed_at"].startswith("20")
    shown = shop.run("policies", "show", "1")
    assert (
        "version 1 of payouts: active, in its canary window, canary queue" in shown
        and "one step of x1.25" in shown
    )
    assert shop.run_json("policies", "show", "1")["guarded"].keys() == {"long", "short"}
    assert shop.run_json(
        "policies", "rollback", "0", "--queue", "payouts", "--why", "odd waits"
    ) == {"version": 2}
    assert shop.app.management.weights("payouts") == {}
    assert "rolled_back" in shop.run("policies") and "odd waits" in shop.run("policies")
    assert "version 1 was rolled back" in shop.run("tune", "plan")
    shop.run("policies", "rollback", "1", "--actor", "ann")
    assert shop.app.management.weights("payouts").keys() == {"long", "short"}


def test_the_kill_switch_removes_computed_weights_and_stops_tuning(shop: Shop) -> None:
    shop.run("tune", "apply")
    assert (
        shop.run("tune", "off", "--why", "odd waits", "--actor", "ann")
        == "every queue: the declared weights and limits are in force\n"
    )
    assert shop.app.management.weights("payouts") == {}
    assert "switched off by ann: odd waits" in shop.run("tune", "apply")
    assert "every queue: off since" in shop.run("policies")
    assert shop.run("tune", "on") == "every queue: on\n"
    assert shop.run("tune", "on") == "every queue: was already on\n"
    assert "payouts: published" in shop.run("tune", "apply")
    assert (
        shop.run("tune", "freeze", "--queue", "payouts") == "payouts: the published version stays\n"
    )
    assert "frozen by" in shop.run("tune", "plan")
    assert shop.app.management.weights("payouts").keys() == {"long", "short"}
    assert [switch["mode"] for switch in shop.run_json("policies")["switches"]] == ["frozen"]
    shop.run("tune", "on", "--queue", "payouts")


def test_the_doctor_shows_who_set_the_weights_in_force(shop: Shop) -> None:
    def doctor_shows(text: str) -> bool:
        return text in CliRunner().invoke(commands, ["doctor"]).output

    assert not doctor_shows("computed weights")
    shop.run("tune", "apply")
    assert doctor_shows(
        "queue payouts: computed weights of 2 keys, version 1, in its canary window"
    )
    shop.run("tune", "off", "--why", "odd waits", "--actor", "ann")
    assert doctor_shows("computed weights of every queue are off, by ann: odd waits")
    assert not doctor_shows("computed weights of 2 keys")


def test_contracts_are_read_from_a_file(shop: Shop) -> None:
    file = shop.folder / "contracts.toml"
    file.write_text(
        '[[contract]]\nqueue = "payouts"\nfairness_key = "long"\nshare = 4.0\n[guards]\nstep = 2.0\n'
    )
    (queue,) = shop.run_json("tune", "plan", "--contracts", str(file))["queues"]
    assert queue["outcome"] == "nothing to change"  # the key already has four times the worker time
    file.write_text("[guards]\nstep = 2.0\n")
    (queue,) = shop.run_json("tune", "plan", "--contracts", str(file))["queues"]
    assert min(change["guarded"] for change in queue["changes"]) == pytest.approx(
        0.5
    )  # one step of factor 2


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("tune", "off", "--apply"), 2, "No such option: --apply"),
        (("tune", "off", "--queue", "unknown"), 2, "no queue named 'unknown'"),
        (("policies", "show", "9"), 1, "no version 9"),
        (("policies", "rollback", "9"), 1, "no version 9"),
        (("policies", "rollback", "0"), 2, "add --queue"),
        (("policies", "rollback", "0", "--queue", "payouts"), 1, "no version is in force"),
    ],
)
def test_an_error_is_reported_in_one_line(
    shop: Shop, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    text = shop.run(*arguments, exits=code)
    assert expected in text and "Traceback" not in text


def test_a_lake_without_tables_is_reported(shop: Shop, tmp_path: Path) -> None:
    lake_in(tmp_path / "empty").identity  # noqa: B018 - creates it
    assert "the tables contain no queue" in shop.run(
        "tune", "plan", "--lake", str(tmp_path / "empty")
    )
    assert "there is no lake at" in shop.run(
        "tune", "plan", "--lake", str(tmp_path / "none"), exits=2
    )
