"""`fairlead pipeline incidents | maintain | erase`, as a person or a cron job runs them."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.pipeline.commands import access
from fairlead.pipeline.models import ATTEMPTS, BACKLOG
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.frames import attempt
from tests.pipeline.silver_rows import waited
from tests.pipeline.tables_by_hand import put
from tests.pipeline.warehouses import lake_in

runner = CliRunner()


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    monkeypatch.setenv("FAIRLEAD_LAKE", str(tmp_path / "lake"))
    lake = lake_in(tmp_path / "lake")
    put(lake, ATTEMPTS, [attempt(fairness_key=key) for key in ("acme", "b")])
    put(lake, BACKLOG, [waited(minute, "b", depth_min=5) for minute in range(6)])
    return lake


def ran(*arguments: str, code: int = 0) -> str:
    done = runner.invoke(app, ["pipeline", *arguments])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def test_erase_prints_its_changes_and_a_dry_run_the_planned_ones(lake: Warehouse) -> None:
    assert "nothing was changed" in ran("erase", "acme", "--dry-run")
    assert "then add --yes" in ran("erase", "acme", code=2)
    result = json.loads(ran("erase", "acme", "--json", "--yes"))
    assert result["rows"]["bronze.attempts"] == 1 and result["left"] == {}
    assert "acme" not in json.dumps(result)
    assert "bronze" not in ran("erase", "acme", "--yes")
    assert "again" in ran("erase", "acme", "--readmit")
    assert "was not erased from this lake" in ran("erase", "acme", "--readmit", code=2)


def test_an_erasure_after_which_a_query_finds_the_key_is_an_error(
    lake: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.pipeline.jobs.erase._delete", lambda *_: None)
    assert "bronze.attempts" in ran("erase", "acme", "--yes", code=1)


def test_incidents_are_printed_as_a_table_or_json(lake: Warehouse) -> None:
    assert "stall" in ran("incidents") and "1 incidents" in ran("incidents")
    [incident] = json.loads(ran("incidents", "--json"))
    assert (incident["kind"], incident["queue"], incident["keys_hit"]) == ("stall", "q", 1)


def test_maintain_names_the_step_that_failed_and_runs_the_others(lake: Warehouse) -> None:
    nowhere = ("--url", f"sqlite:///{lake.location.folder}/none/tasks.db", "--skip", "check")
    printed = ran("maintain", *nowhere, code=1)
    assert "fairlead: reconcile: " in printed and "none" in printed
    steps = json.loads(ran("maintain", *nowhere, "--json", code=1).partition("\n")[0])["steps"]
    assert [(step["name"], step["state"]) for step in steps] == [
        ("compact", "done"),
        ("expire", "done"),
        ("reconcile", "failed"),
        ("retain", "skipped"),
        ("check", "skipped"),
    ]
    assert "use compact, expire, reconcile, retain, check" in ran(
        "maintain", "--skip", "gc", code=2
    )


def test_a_name_that_is_too_long_for_the_file_system_is_one_line(
    lake: Warehouse, tmp_path: Path
) -> None:
    long = tmp_path / ("n" * 300)
    for command in ("status", "check", "incidents", "maintain", "report"):
        printed = ran(command, "--lake", str(long), code=2)
        assert f"lake {long}: {long}/catalog.db: File name too long; give a folder" in printed
    catalog = f"sqlite:///{long}"
    assert f"{long}: File name too long" in ran("sql", "select 1", "--catalog", catalog, code=2)
    assert f"{long}: File name too long" in ran(
        "erase", "acme", "--yes", "--catalog", catalog, code=2
    )
    for out in (long, long / "report.html"):
        assert f"--out {out}: " in ran("report", "--out", str(out), code=2)


def test_a_copy_of_a_lake_is_refused_and_leaves_the_lake_as_it_was(
    lake: Warehouse, tmp_path: Path
) -> None:
    old, new, link = tmp_path / "lake", tmp_path / "fairlead" / "copy", tmp_path / "link"
    shutil.copytree(old, new)
    before = sorted(old.rglob("*"))
    for command in (
        ["status"],
        ["sql", "select 1 from bronze.attempts"],
        ["erase", "acme", "--yes"],
    ):
        (line,) = ran(*command, "--lake", str(new), code=1).splitlines()
        assert f"{new} was moved or copied, and its files name {old}" in line
        assert "run `fairlead pipeline restore`" in line
    assert sorted(old.rglob("*")) == before
    link.symlink_to(old)
    assert "2" in ran("sql", "select count(*) as n from bronze.attempts", "--lake", str(link))


def test_an_error_of_spark_is_one_line_with_its_first_cause(
    lake: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = (
        "An error occurred while calling o8.overwrite.\n: org.apache.spark.SparkException: aborted\n"
        "\tat java.base/java.lang.Thread.run(Thread.java)\n"
        "Caused by: org.apache.iceberg.exceptions.CommitFailedException: metadata has changed\n"
    )

    def fails(*_: object) -> None:
        raise PySparkException(trace)

    monkeypatch.setattr(access, "session_of", lambda *_: nullcontext(SimpleNamespace(version="4")))
    monkeypatch.setattr("fairlead.pipeline.jobs.build.build", fails)
    (line,) = ran("build", code=1).splitlines()
    assert "Spark failed: metadata has changed; run the command again" in line


def test_the_error_about_wrong_use_is_one_line(lake: Warehouse) -> None:
    assert "name the key" in ran("erase", "", "--yes", code=2)
    assert "--keep-days" in ran("maintain", "--keep-days", "1000000", code=2)
    assert "instant 'monday'" in ran("incidents", "--since", "monday", code=2)


@pytest.mark.parametrize("amount", ["-0.01", "inf", "nan", "1e12"])
def test_an_amount_that_no_table_can_have_is_a_wrong_setting(
    lake: Warehouse, tmp_path: Path, amount: str
) -> None:
    file = tmp_path / "pipeline.toml"
    for text in (
        f"[cost]\nworker_hour = {amount}",
        f"[[bill]]\nday = 2026-11-01\nworker_hours = 8\namount = {amount}",
    ):
        file.write_text(text)
        printed = ran("build", "--settings", str(file), code=2)
        assert "the amount of a day is at least 0" in printed


def test_an_instant_with_an_offset_is_one_of_utc(lake: Warehouse) -> None:
    period = "--since", "2026-11-08T00:30+02:00", "--until", "2026-11-08T00:10+02:00"
    assert "between 2026-11-07 22:30 and 2026-11-07 22:10 UTC" in ran("report", *period, code=2)
