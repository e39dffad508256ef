"""The LCG trace through the whole pipeline: submitted from a DataFrame, run by two workers,
exported, built, reported.

python bench/pipeline_lcg.py [--trace ../shared/data/lcg-2005.swf.gz] [--only sqlite,postgres]
    [--keep FOLDER]

Print the rows of each layer and the seconds of each step, as a table in Markdown. Exit code 1
unless every layer has exactly the jobs of the trace. `--keep` keeps the lakes and report pages
in FOLDER.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT), str(ROOT / "src")]

from lcg_app import FOLDER, application, judge  # noqa: E402
from lcg_trace import read_trace  # noqa: E402

from fairlead.lab.demo import has_unfinished  # noqa: E402
from fairlead.lab.workers import WorkerProcess  # noqa: E402
from fairlead.pipeline.models import ATTEMPTS, TASKS  # noqa: E402
from fairlead.pipeline.warehouse.location import Location  # noqa: E402
from fairlead.pipeline.warehouse.warehouse import Warehouse  # noqa: E402
from services.postgres import PostgresServer  # noqa: E402

TRACE = ROOT.parent / "shared" / "data" / "lcg-2005.swf.gz"


def main() -> int:
    """Run both stores, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=pathlib.Path, default=TRACE)
    parser.add_argument("--only", default="sqlite,postgres")
    parser.add_argument("--keep", type=pathlib.Path)
    arguments = parser.parse_args()
    if not arguments.trace.is_file():
        print(f"no trace at {arguments.trace}: give one with --trace", file=sys.stderr)
        return 2
    sound = True
    with tempfile.TemporaryDirectory() as scratch:
        for store in arguments.only.split(","):
            folder = (arguments.keep or pathlib.Path(scratch)) / store
            folder.mkdir(parents=True)
            if store == "postgres":
                with PostgresServer() as server:
                    sound &= one_store(store, server.create_database(), arguments.trace, folder)
            else:
                sound &= one_store(
                    store, f"sqlite:///{folder / 'tasks.db'}", arguments.trace, folder
                )
    return 0 if sound else 1


def one_store(store: str, url: str, trace: pathlib.Path, folder: pathlib.Path) -> bool:
    """Run the trace through the pipeline; return whether every layer has each job once."""
    steps: list[tuple[str, float, str]] = []
    lake = folder / "lake"
    jobs = write_jobs(trace, folder / "jobs.parquet")
    app, run_job = application(url)
    app.migrate()

    def step(name: str, *command: object) -> dict[str, Any]:
        began = time.monotonic()
        found: dict[str, Any] = fairlead(*command)
        steps.append((name, time.monotonic() - began, str(found.get("seconds", ""))))
        return found

    os.environ |= {"FAIRLEAD_URL": url, FOLDER: str(folder), "PYTHONPATH": str(HERE)}
    submit = ("pipeline", "submit", "lcg_app:app", run_job.name, folder / "jobs.parquet")
    totals = step("submit", *submit)
    again = step("submit once more", *submit)
    began = time.monotonic()
    run_all(app, url, folder)
    steps.append(("run by two workers", time.monotonic() - began, ""))
    exported = step("ingest", "pipeline", "ingest", "--url", url, "--lake", lake)
    built = step("build", "pipeline", "build", "--lake", lake)
    step("report", "pipeline", "report", "--lake", lake, "--out", folder / "report.html")
    checked = step("check", "pipeline", "check", "--lake", lake)
    step("reconcile", "pipeline", "maintain", "--skip", "check", "--lake", lake, "--url", url)
    lost, ran_twice = judge(range(jobs), sorted(folder.glob("*.runs")))
    stored = Warehouse(Location.of(lake))
    layers = {
        "jobs of the trace": jobs,
        "tasks submitted": totals["inserted"],
        "attempts exported": exported["attempts"],
        "bronze.attempts": sum(file.rows for file in stored.table(ATTEMPTS).files()),
        "silver.tasks": sum(file.rows for file in stored.table(TASKS).files()),
        "quarantined": built["quarantined"],
    }
    sound = (
        len({rows for name, rows in layers.items() if name != "quarantined"}) == 1
        and not layers["quarantined"]
    )
    sound &= not lost and not ran_twice and totals["inserted"] == again["inserted"]
    print(f"\n{store}: lost {lost}, ran twice {ran_twice}, checks {len(checked['checks'])}\n")
    print(
        "| layer | rows |",
        "|---|---|",
        *(f"| {name} | {rows:,} |" for name, rows in layers.items()),
        sep="\n",
    )
    print(
        "\n| step | seconds of the process | seconds of the job in it |", "|---|---|---|", sep="\n"
    )
    print(
        *(f"| {name} | {seconds:,.1f} | {own} |" for name, seconds, own in steps),
        sep="\n",
        flush=True,
    )
    app.close()
    return sound


def write_jobs(trace: pathlib.Path, path: pathlib.Path) -> int:
    """Write the jobs as a Parquet file of tasks, numbered from 0, and return their number."""
    owners = [job.tenant for job in read_trace(trace)]
    columns = {"job": range(len(owners)), "fairness_key": owners}
    pq.write_table(
        pa.table({name: pa.array(list(values)) for name, values in columns.items()}), path
    )
    return len(owners)


def run_all(app: Any, url: str, folder: pathlib.Path) -> None:
    """Run two workers until nothing is left."""
    pause = threading.Event()
    environment = {"FAIRLEAD_URL": url, FOLDER: str(folder), "PYTHONPATH": str(HERE)}
    with WorkerProcess("lcg_app:app", folder, environment, "--workers", "2") as worker:
        worker.wait_until_up(app, 2)
        while has_unfinished(app):
            worker.check()
            pause.wait(0.2)


def fairlead(*command: object) -> dict[str, Any]:
    """Run one command with --json, and return its output."""
    ran = subprocess.run(
        [sys.executable, "-m", "fairlead", *map(str, command), "--json"],
        capture_output=True,
        text=True,
    )
    if ran.returncode:
        raise SystemExit(
            f"fairlead {command[1]} failed ({ran.returncode}): {ran.stdout[-500:]}"
            f" {ran.stderr[-2000:]}"
        )
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


if __name__ == "__main__":
    sys.exit(main())
