"""`check` finds each damage of a built lake without Spark, and counts what Spark counts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from fairlead.cli.main import app as fairlead_command
from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.errors import BrokenLake, CheckFailed
from fairlead.pipeline.jobs import checks
from fairlead.pipeline.jobs.checks import check
from fairlead.pipeline.jobs.erase import erase
from fairlead.pipeline.jobs.totals import Tables, TablesOfJob
from fairlead.pipeline.models import (
    ATTEMPTS,
    COST,
    EVENTS,
    LATENCY,
    LATENCY_HIST,
    OPEN_TASKS,
    QUARANTINE,
    SERVICE,
    TABLES,
    TASKS,
    TENANT_SHARE,
)
from fairlead.pipeline.reading.engine import file_name
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.reading.snapshots import Snapshots
from fairlead.pipeline.retention import drop_before
from fairlead.pipeline.runs import Check, last_runs
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.builds import Build, Builds
from fairlead.pipeline.warehouse.compaction import compact
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.pipeline.warehouse_tables import WarehouseTables
from tests.pipeline.frames import at, attempt, event
from tests.pipeline.tables_by_hand import MemoryTables, micros, put, row
from tests.pipeline.warehouses import MadeOnce, export, lake_in

Rows = dict[Table, list[dict[str, Any]]]
Damage = Callable[[Rows, Random], None]

DAY = 86_400


@pytest.fixture
def random(request: pytest.FixtureRequest) -> Random:
    """Chance of a test, another one with another `--hypothesis-seed`."""
    return Random(f"{request.node.name} {request.config.option.hypothesis_seed or 0}")


def made(random: Random) -> Rows:
    """Return tables that agree: attempts of two days, one of them over midnight."""
    attempts = []
    for number in range(40):
        # Few hours, because each has a file in a lake.
        begin = random.choice((-2 * DAY, -DAY, -5 * 3600)) + random.uniform(0, 3600)
        for tries in range(random.randint(1, 3)):
            start = begin + tries * 4000
            attempts.append(
                attempt(
                    task_id=f"task-{number:03}",
                    attempt=tries + 1,
                    submitted_at=begin,
                    started_at=start,
                    finished_at=start + random.uniform(0.001, 3000),
                )
            )
    over_midnight = {"submitted_at": -11 * 3600, "started_at": -10.5 * 3600}
    attempts.append(attempt(**over_midnight, finished_at=-9 * 3600))
    attempts.append(attempt(submitted_at=-5000, started_at=None, outcome="cancelled"))
    broken = attempt(submitted_at=-100, started_at=50, finished_at=40)
    busy: Counter[Any] = Counter()
    tasks: dict[str, dict[str, Any]] = {}
    hours: Counter[Any] = Counter()
    for each in attempts:
        begin, end = each["started_at"] or each["finished_at"], each["finished_at"]
        task = tasks.setdefault(
            each["task_id"],
            row(TASKS, **{name: each[name] for name in ("store_id", "task_id", "submitted_at")})
            | {"run_us": 0},
        )
        task["run_us"] += micros(end) - micros(begin)
        task["last_finished_at"] = max(end, task["last_finished_at"] or end)
        hour = begin.replace(minute=0, second=0, microsecond=0)
        while hour < end:
            inside = min(end, hour + timedelta(hours=1)), max(begin, hour)
            busy[hour] += micros(inside[0]) - micros(inside[1])
            hour += timedelta(hours=1)
        if each["started_at"] is not None:
            hours[end.replace(minute=0, second=0, microsecond=0)] += 1
    days: Counter[Any] = Counter()
    for hour, spent in busy.items():
        days[hour.replace(hour=0)] += spent
    opened = row(OPEN_TASKS, task_id="open", submitted_at=at(-60))
    shares = [(hour, length, us) for hour, us in busy.items() for length in (60, 3600)]
    shares += [(day, DAY, us) for day, us in days.items()]
    return {
        ATTEMPTS: [*attempts, broken],
        QUARANTINE: [
            row(QUARANTINE, source="bronze.attempts/store", seen_at=broken["finished_at"])
        ],
        TASKS: [
            *tasks.values(),
            row(TASKS, task_id="open", submitted_at=at(-60)) | {"run_us": 0},
        ],
        OPEN_TASKS: [opened],
        SERVICE: [row(SERVICE, window_start=hour, busy_us=us) for hour, us in busy.items()],
        TENANT_SHARE: [
            row(TENANT_SHARE, window_start=start, window_s=length, busy_us=us)
            for start, length, us in shares
        ],
        COST: [row(COST, day=day, busy_us=us, amount=Decimal(1)) for day, us in days.items()],
        LATENCY_HIST: [
            row(LATENCY_HIST, hour=hour, measure="run", fairness_key="*", n=n)
            for hour, n in hours.items()
        ],
        LATENCY: [row(LATENCY)],
    }


def publish(lake: Warehouse) -> None:
    """Publish the present state of all tables as a build of the present bronze."""
    builds = Builds(lake)
    before, seen = builds.newest()
    states = {table.name: lake.table(table).state().snapshot for table in made(Random(0))}
    found = {name: snapshot for name, snapshot in states.items() if snapshot is not None}
    attempts = found.pop(ATTEMPTS.name)
    build = Build(sources={ATTEMPTS.name: attempts}).after(found)
    assert builds.publish(build, seen, 1)
    builds.finish(build)


def built(lake: Warehouse, rows: Rows) -> Warehouse:
    for table, each in rows.items():
        put(lake, table, each)
    publish(lake)
    return lake


def missing(table: Table) -> Damage:
    return lambda rows, random: rows[table].remove(random.choice(rows[table]))


def doubled(table: Table) -> Damage:
    return lambda rows, random: rows[table].append(random.choice(rows[table]))


def longer(table: Table, column: str) -> Damage:
    """Return the damage of one microsecond, or of one run."""

    def damage(rows: Rows, random: Random) -> None:
        each = random.choice([each for each in rows[table] if each[column]])
        more = 1 if isinstance(each[column], int) else timedelta(microseconds=1)
        rows[table][rows[table].index(each)] = each | {column: each[column] + more}

    return damage


COUNTED = (ATTEMPTS, QUARANTINE, TASKS, OPEN_TASKS, SERVICE, TENANT_SHARE, COST, LATENCY_HIST)
DAMAGES: dict[str, Damage] = {
    **{f"a row of {table.name} is missing": missing(table) for table in COUNTED},
    **{f"a row of {table.name} is doubled": doubled(table) for table in COUNTED},
    "an attempt is longer": longer(ATTEMPTS, "finished_at"),
    "a task is longer": longer(TASKS, "run_us"),
    "an hour is longer": longer(SERVICE, "busy_us"),
    "a share is greater": longer(TENANT_SHARE, "busy_us"),
    "a cost is greater": longer(COST, "busy_us"),
    "a bucket has a run more": longer(LATENCY_HIST, "n"),
}


def damaged(sound: Rows, name: str, random: Random) -> Rows:
    rows = {table: list(each) for table, each in sound.items()}
    DAMAGES[name](rows, random)
    return rows


def become(lake: Warehouse, rows: Rows, before: Rows) -> None:
    """Replace the tables whose rows differ from those before, and publish."""
    for table in rows:
        if rows[table] != before.get(table):
            here, seen = lake.table(table), lake.table(table).state()
            parts = {file.part for file in here.files()}
            assert not parts or here.replace(parts, [], seen)
            put(lake, table, rows[table])
    publish(lake)


class TablesInPasses(MemoryTables):
    """Tables of more keys than fit into memory."""

    keys_at_once = 50


class TablesWithCollisions(MemoryTables):
    """Tables whose keys have one hash."""

    def totals(self, text: str, *more: Any) -> list[dict[str, Any]]:
        return super().totals(text.replace("DISTINCT xxhash64(", "DISTINCT 1 % xxhash64("), *more)


def of(tables: Tables, rows: Rows) -> list[Check]:
    """Return all checks of these rows."""

    def kept(table: Table) -> Collection[str] | None:
        return None

    return [
        *(checks.sound_check(tables, table, kept) for table in (ATTEMPTS, EVENTS)),
        *checks.layer_checks(tables, kept, {table: len(each) for table, each in rows.items()}),
        *checks.key_checks(tables, {t: len(rows[t]) for t in rows if t.query or t is ATTEMPTS}),
        *checks.histogram_checks(tables, parts=kept),
    ]


def failed(rows: Rows, tables: type[MemoryTables] = MemoryTables) -> list[str]:
    """Return the names of the checks of these rows that fail."""
    made = tables({table.name: each for table, each in rows.items()})
    return [each.name for each in of(made, rows) if not each.holds]


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    rows = made(Random(1))
    return MadeOnce(tmp_path_factory.mktemp("sound"), lambda lake: built(lake, rows))


@pytest.fixture
def lake(made_once: MadeOnce) -> Warehouse:
    """Lake whose tables agree."""
    return made_once.again()


def test_a_sound_lake_passes_all_checks(lake: Warehouse) -> None:
    run = check(lake, SYSTEM_CLOCK)
    assert all(each.holds for each in run.checks) and not run.notes and not run.spark_version
    names = [each.name for each in run.checks]
    assert len(names) == len(set(names))
    assert "gold.tenant_share: worker time by 86400 s" in names
    assert last_runs(lake)["check"]["state"] == "done"


@pytest.mark.parametrize(
    "tables", [MemoryTables, TablesInPasses, TablesWithCollisions], ids=lambda each: each.__name__
)
def test_each_damage_of_a_row_fails_a_check(random: Random, tables: type[MemoryTables]) -> None:
    sound = made(random)
    assert not failed(sound, tables)
    for name in DAMAGES:
        assert failed(damaged(sound, name, random), tables), name


@pytest.mark.parametrize(
    "table", [each for each in TABLES if each.query], ids=lambda each: each.name
)
def test_two_rows_with_one_key_fail_a_check(table: Table) -> None:
    sound = made(Random(1))
    twice = [*sound.get(table, [row(table)]), *sound.get(table, [row(table)])[:1]]
    assert f"{table.name}: keys are unique" in failed({**sound, table: twice})


def test_a_table_of_shares_that_has_lost_all_windows_of_a_size_fails_a_check() -> None:
    sound = made(Random(1))
    for length in (60, 3600, DAY):
        shares = [row for row in sound[TENANT_SHARE] if row["window_s"] != length]
        names = failed({**sound, TENANT_SHARE: shares})
        assert names == [f"gold.tenant_share: worker time by {length} s"]


@pytest.mark.parametrize("table", [ATTEMPTS, LATENCY], ids=lambda table: table.name)
def test_a_file_that_is_missing_or_truncated_is_named(
    lake: Warehouse, random: Random, table: Table
) -> None:
    """Also a file of a table whose rows no check adds up."""
    file = Path(file_name(random.choice(lake.table(table).files()).path))
    content = file.read_bytes()
    file.write_bytes(content[: random.randrange(len(content))])
    with pytest.raises(BrokenLake, match=file.name):
        check(lake, SYSTEM_CLOCK)
    assert last_runs(lake)["check"]["state"] == "failed"
    file.unlink()
    with pytest.raises(BrokenLake, match=file.name):
        check(lake, SYSTEM_CLOCK)
    file.write_bytes(content)
    assert check(lake, SYSTEM_CLOCK).state == "done"


def test_a_list_that_promises_more_rows_than_its_files_have_fails_a_check(lake: Warehouse) -> None:
    short = Path(file_name(lake.table(LATENCY).files()[0].path))
    put(lake, LATENCY, [row(LATENCY), row(LATENCY)], "two")
    two = next(file for file in lake.table(LATENCY).files() if "/two" in file.path)
    Path(file_name(two.path)).write_bytes(short.read_bytes())
    with pytest.raises(CheckFailed, match="gold.latency: files are whole: expected 3, found 2"):
        check(lake, SYSTEM_CLOCK)


def test_rows_that_no_build_has_read_yet_are_no_difference(lake: Warehouse) -> None:
    export(lake, ATTEMPTS, [attempt(submitted_at=0), attempt(submitted_at=10 * DAY)])
    assert compact(lake.table(ATTEMPTS), SYSTEM_CLOCK.now()).parts > 1
    assert check(lake, SYSTEM_CLOCK).state == "done"


def test_days_that_bronze_has_forgotten_are_no_difference(lake: Warehouse) -> None:
    assert drop_before(lake, date(2026, 3, 2)).days
    assert check(lake, SYSTEM_CLOCK).state == "done"  # the build has read rows that are gone now
    publish(lake)
    assert check(lake, SYSTEM_CLOCK).state == "done"  # and the next one has not
    put(lake, SERVICE, [row(SERVICE, window_start=at(0))], "more")
    with pytest.raises(CheckFailed, match="silver.service"):
        check(lake, SYSTEM_CLOCK)


def test_a_run_missing_in_the_histogram_of_a_kept_day_fails_a_check(tmp_path: Path) -> None:
    rows = made(Random(1))
    rows[ATTEMPTS].insert(0, attempt(started_at=-10.5 * 3600, finished_at=-10.5 * 3600 + 60))
    hours: Counter[Any] = Counter()
    for each in rows[ATTEMPTS][:-1]:
        if each["started_at"] is not None:
            hours[each["finished_at"].replace(minute=0, second=0, microsecond=0)] += 1
    rows[LATENCY_HIST] = [
        row(LATENCY_HIST, hour=hour, measure="run", fairness_key="*", n=n)
        for hour, n in hours.items()
    ]
    lake = lake_in(tmp_path / "lake")
    for table in (ATTEMPTS, QUARANTINE, LATENCY_HIST):
        put(lake, table, rows[table])
    publish(lake)
    drop_before(lake, date(2026, 3, 2))
    assert histogram_of(lake).holds and histogram_of(lake).found > 1
    kept = [each for each in rows[LATENCY_HIST] if each["hour"] >= at(-10 * 3600)]
    assert 0 < len(kept) < len(rows[LATENCY_HIST])
    become(lake, {**rows, LATENCY_HIST: kept[1:]}, rows)
    assert not histogram_of(lake).holds


def histogram_of(lake: Warehouse) -> Check:
    """Return the check of the histogram, whatever else fails."""
    with suppress(CheckFailed):
        check(lake, SYSTEM_CLOCK)
    checks_made = msgspec.json.decode(last_runs(lake)["check"]["checks"], type=list[Check])
    [found] = [each for each in checks_made if each.name.startswith("gold.latency_hist: runs")]
    return found


def test_a_lake_without_a_build_or_with_an_erased_key_is_compared_after_the_next_build(
    tmp_path: Path,
) -> None:
    lake = lake_in(tmp_path / "lake")
    export(lake, ATTEMPTS, [attempt(fairness_key=key) for key in "ab"])
    assert check(lake, SYSTEM_CLOCK).notes == ["the layers are compared after the next build"]
    built(lake, made(Random(1)))
    erase(lake, "b", SYSTEM_CLOCK)
    run = check(lake, SYSTEM_CLOCK)
    assert run.notes == ["the layers are compared after the next build"]
    assert all(each.holds for each in run.checks)


def test_unsound_rows_before_the_first_build_are_no_difference(tmp_path: Path) -> None:
    lake = lake_in(tmp_path / "lake")
    put(lake, ATTEMPTS, [attempt(), attempt(started_at=5, finished_at=1)])
    put(lake, EVENTS, [event(weight=0.0)])
    assert [each.name for each in check(lake, SYSTEM_CLOCK).checks][-1] == (
        "bronze.attempts: keys are unique"
    )
    erase(lake, "nobody", SYSTEM_CLOCK)
    assert check(lake, SYSTEM_CLOCK).state == "done"


def test_attempts_that_the_first_build_has_not_seen_are_no_difference(tmp_path: Path) -> None:
    """The build has read events only, because no attempt had been exported."""
    lake = lake_in(tmp_path / "lake")
    put(lake, TASKS, [row(TASKS, task_id="open", submitted_at=at(0)) | {"run_us": 0}])
    put(lake, OPEN_TASKS, [row(OPEN_TASKS, task_id="open", submitted_at=at(0))])
    builds = Builds(lake)
    made_of = {table.name: lake.table(table).state().snapshot for table in (TASKS, OPEN_TASKS)}
    assert builds.publish(Build().after(made_of), builds.newest()[1], 1)  # type: ignore[arg-type]
    assert check(lake, SYSTEM_CLOCK).state == "done"
    export(lake, ATTEMPTS, [attempt(task_id="open")])
    assert check(lake, SYSTEM_CLOCK).state == "done"


def test_a_task_of_a_forgotten_day_that_ends_later_is_no_difference(tmp_path: Path) -> None:
    """Builds leave the day of its submit as it was."""
    rows = made(Random(1))
    rows[TASKS].append(row(TASKS, task_id="long", submitted_at=at(-2 * DAY)) | {"run_us": 0})
    rows[OPEN_TASKS].append(row(OPEN_TASKS, task_id="long", submitted_at=at(-2 * DAY)))
    lake = built(lake_in(tmp_path / "lake"), rows)
    assert drop_before(lake, date(2026, 3, 2)).days
    cancelled = {"started_at": None, "finished_at": 0, "outcome": "cancelled"}
    export(lake, ATTEMPTS, [attempt(task_id="long", submitted_at=-2 * DAY, **cancelled)])
    publish(lake)
    assert check(lake, SYSTEM_CLOCK).state == "done"


def test_spark_and_duckdb_count_the_same(
    on_warehouse: SparkSession,
    warehouse: Warehouse,
    random: Random,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sound, before = made(random), Rows()
    for name in [None, *random.sample(list(DAMAGES), 2)]:
        rows = sound if name is None else damaged(sound, name, random)
        become(warehouse, rows, before)
        before = rows
        on_spark = TablesOfJob(on_warehouse, WarehouseTables(on_warehouse, warehouse, SYSTEM_CLOCK))
        monkeypatch.setattr(on_spark, "totals", on_spark.on_spark)
        with Frames(warehouse, Snapshots(warehouse).read()) as on_duckdb:
            found = of(on_duckdb, rows)
        assert found == of(on_spark, rows), name
        assert all(each.holds for each in found) is (name is None), name


def test_the_commands_end_with_code_1_for_a_difference_and_a_damaged_file(lake: Warehouse) -> None:
    arguments = ["pipeline", "check", "--lake", str(lake.location.folder)]
    run = json.loads(CliRunner().invoke(fairlead_command, [*arguments, "--json"]).stdout)
    assert run["state"] == "done" and run["checks"][0] == {
        "name": "bronze.attempts: files are whole",
        "expected": run["checks"][0]["found"],
        "found": run["checks"][0]["found"],
    }
    shown = CliRunner().invoke(fairlead_command, arguments)
    assert shown.exit_code == 0 and "silver.tasks: keys are unique" in shown.stdout
    put(lake, SERVICE, [row(SERVICE, window_start=at(0))], "more")
    maintain = ["pipeline", "maintain", *arguments[2:]]
    for step in ("compact", "expire", "reconcile"):
        maintain += ["--skip", step]
    for command in (arguments, maintain):
        ended = CliRunner().invoke(fairlead_command, command)
        assert ended.exit_code == 1 and "silver.service: worker time" in ended.stderr
    Path(file_name(lake.table(COST).files()[0].path)).unlink()
    for command in (arguments, maintain):
        ended = CliRunner().invoke(fairlead_command, command)
        assert ended.exit_code == 1 and "a file is missing" in ended.stderr


@pytest.mark.parametrize("library", ["duckdb", "pyiceberg", "pyarrow", "sqlalchemy"])
def test_a_missing_library_is_named_with_the_extra(tmp_path: Path, library: str) -> None:
    lake = lake_in(tmp_path / "lake")
    put(lake, COST, [])
    program = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from fairlead.cli.main import app; app(sys.argv[1:])"
    )
    arguments = ["pipeline", "check", "--lake", str(lake.location.folder)]
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True
    )
    assert ran.returncode == 2 and "Traceback" not in ran.stderr, ran.stderr
    assert f"{library} missing: pip install 'fairlead[pipeline]'" in ran.stderr, ran.stderr
