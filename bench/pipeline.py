"""The build of the pipeline: its growth with the attempts and with the cores, compared with DuckDB,
and one hour at a time.

python bench/pipeline.py [--rows 100000,1000000,10000000] [--cores 1,2] [--runs 1] [--memory 4g]
    [--plot docs/pipeline-scale.svg] [--json] [--keep FOLDER]

Every figure comes from a process of its own, bound to its number of cores; the start of the JVM is
reported separately. The results of DuckDB are compared with those of Spark on the same files before
any time is shown. Exit code 1 if an aim is missed. See bench/README.md.
"""

import argparse
import contextlib
import datetime
import importlib.util
import itertools
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT), str(ROOT / "src")]

from run import describe_machine, say  # noqa: E402

from fairlead.pipeline.bronze import ATTEMPTS  # noqa: E402
from fairlead.pipeline.warehouse.location import Location  # noqa: E402
from fairlead.pipeline.warehouse.warehouse import Warehouse  # noqa: E402

VENV = HERE / ".venv"
REQUIREMENTS = HERE / "requirements-pipeline.txt"
SHARES = ["window_s", "window_start", "queue", "fairness_key"]
PERCENTILES = ["window_start", "queue", "name", "measure"]

GOAL_SLOPE = (0.9, 1.1)
GOAL_SPEED_UP = 1.7
GOAL_PER_CORE = 15_000
GOAL_DUCKDB = 8.0
GOAL_HOUR = 1.3

HOUR_BUILDS = ("hour", "hour with late rows")
"""Builds of one more hour, after the build of the whole lake, on all cores."""

Found = dict[str, Any]


class Differs(Exception):
    """The engines disagree; the text says where."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", default="100000,1000000,10000000", help="attempts, comma-separated"
    )
    parser.add_argument("--cores", default="1,2")
    parser.add_argument(
        "--runs", type=int, default=1, help="of each process; the median of them counts"
    )
    parser.add_argument("--memory", default="4g", help="heap of the JVM")
    parser.add_argument("--plot", type=pathlib.Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--keep", type=pathlib.Path, help="work in this folder and leave the lakes there"
    )
    wanted = parser.parse_args()
    sizes, cores = (
        sorted(map(int, wanted.rows.split(","))),
        sorted(map(int, wanted.cores.split(","))),
    )
    if cores[-1] > len(os.sched_getaffinity(0)):
        parser.error(f"--cores {cores[-1]}: there are {len(os.sched_getaffinity(0))}")
    python = duckdb_python()
    results: dict[int, Found] = {}
    with folder(wanted.keep) as work:
        for rows in sizes:
            results[rows] = of_size(
                work / str(rows),
                rows,
                cores,
                wanted.runs,
                wanted.memory,
                python,
                work / str(sizes[0]) / "lake",
            )
            if not wanted.keep and rows != sizes[0]:
                shutil.rmtree(work / str(rows))
    report = summary(results, cores)
    if wanted.plot:
        plot(results, cores, wanted.plot)
    machine = describe_machine(pathlib.Path(sys.executable)) | versions(results)
    if wanted.json:
        aims = [
            {"what": aim.what, "value": aim.value, "bounds": aim.bounds}
            for aim in report
            if not math.isnan(aim.value)
        ]
        print(json.dumps({"machine": machine, "sizes": results, "aims": aims}, indent=1))
    else:
        print(as_markdown(results, cores, report, machine, wanted.memory, wanted.runs))
    return 0 if all(aim.is_met for aim in report) else 1


# measuring ----------------------------------------------------------------------------------------


def of_size(
    here: pathlib.Path,
    rows: int,
    cores: list[int],
    runs: int,
    memory: str,
    python: pathlib.Path,
    first: pathlib.Path,
) -> Found:
    """Measure everything about one size: {"made": .., "build": {cores: ..}, "spark": {cores: ..},
    "duckdb": {cores: ..}}."""
    lake = here / "lake"
    say(f"{rows:,} attempts are made")
    found: Found = {
        "made": spark("generate", lake, cores[-1], memory, "--rows", str(rows)),
        "build": {},
    }
    say(
        f"  {found['made']['attempts']:,} in {found['made']['seconds']:.0f} s,"
        f" {found['made']['mb']:.0f} MB"
    )
    for n in cores:
        # Every build is a full one. The hours more come last, because the lake keeps them.
        rounds = []
        for left in reversed(range(runs)):
            more = ["--hours"] if n == cores[-1] and not left else []
            rounds.append(
                spark("build", lake, n, memory, "--rows", str(rows), "--first", str(first), *more)
            )
            one = rounds[-1]
            say(
                f"  built on {n}: {one['warm']['seconds']:.1f} s, after"
                f" {one['cold']['seconds']:.1f} s for the smallest, cold"
            )
        found["build"][n] = rounds[-1] | middle(rounds)
    files = [
        file.path.removeprefix("file://")
        for file in Warehouse(Location.of(lake)).table(ATTEMPTS).files()
    ]
    for engine in ("spark", "duckdb"):
        found[engine] = {}
        for n in cores:
            out = here / f"{engine}-{n}"
            rounds = [
                (
                    spark("aggregate", lake, n, memory, "--out", str(out))
                    if engine == "spark"
                    else child(
                        n,
                        [
                            str(python),
                            str(HERE / "pipeline_duckdb.py"),
                            str(out),
                            "--threads",
                            str(n),
                        ],
                        files,
                    )
                )
                for _ in range(runs)
            ]
            found[engine][n] = middle(rounds)
            if (engine, n) != ("spark", cores[0]):
                compare(here / f"spark-{cores[0]}", out)
    for n in cores:
        say(
            f"  the same by DuckDB on {n}: {found['duckdb'][n]['warm']['seconds']:.2f} s, "
            f"by Spark {found['spark'][n]['warm']['seconds']:.2f} s"
        )
    return found


def spark(what: str, lake: pathlib.Path, cores: int, memory: str, *arguments: str) -> Found:
    """Run pipeline_spark.py once."""
    program = [sys.executable, str(HERE / "pipeline_spark.py"), what, str(lake)]
    return child(cores, [*program, "--cores", str(cores), "--memory", memory, *arguments])


def child(cores: int, command: list[str], lines: list[str] | None = None) -> Found:
    """Run a process bound to `cores` cores, its garbage collection included, and return the JSON
    object of its last line."""
    ours = sorted(os.sched_getaffinity(0))[:cores]
    done = subprocess.run(
        ["taskset", "-c", ",".join(map(str, ours)), *command],
        input="\n".join(lines or []),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode}): {done.stderr[-3000:]}")
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


def middle(rounds: list[Found]) -> Found:
    """Return the median of every figure over equal processes."""
    first = rounds[0]
    return {
        name: (
            middle([found[name] for found in rounds])
            if isinstance(value, dict)
            else (
                statistics.median(found[name] for found in rounds)
                if isinstance(value, int | float)
                else value
            )
        )
        for name, value in first.items()
    }


def compare(ours: pathlib.Path, theirs: pathlib.Path) -> None:
    """Raise Differs unless both hold the same rows: counts and microseconds equal, shares to twelve
    digits, and percentiles too, except where the engines' logarithms put a value on different sides
    of a bucket's edge."""
    import numpy as np
    import pandas as pd

    for name, key in (("shares", SHARES), ("percentiles", PERCENTILES)):
        one, other = (
            pd.read_parquet(next(iter(sorted(folder.glob(f"{name}*")))))
            .astype({"window_start": "datetime64[us, UTC]"})
            .set_index(key)
            .sort_index()
            for folder in (ours, theirs)
        )
        if not one.index.equals(other.index):
            raise Differs(
                f"{name}: {len(one):,} rows in {ours.name}, {len(other):,} in {theirs.name}"
            )
        for column in one.columns:
            width = 0.021 if column.startswith("p") else 1e-12
            off = ~np.isclose(
                one[column].astype("float64"), other[column].astype("float64"), rtol=width, atol=0
            )
            if off.any():
                raise Differs(
                    f"{name}.{column}: {off.sum():,} of {len(one):,} differ, first at"
                    f" {one.index[off.argmax()]}"
                )


def duckdb_python() -> pathlib.Path:
    """Return an interpreter with DuckDB: this one, or one of the benchmark's virtual environment,
    made if it is missing."""
    if importlib.util.find_spec("duckdb") is not None:
        return pathlib.Path(sys.executable)
    stamp, python = VENV / ".installed-pipeline", VENV / "bin" / "python"
    if not stamp.is_file() or stamp.read_text() != REQUIREMENTS.read_text():
        say("installing DuckDB in bench/.venv")
        if not python.is_file():
            subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        install = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-r",
        ]
        subprocess.run([*install, str(REQUIREMENTS)], check=True)
        stamp.write_text(REQUIREMENTS.read_text())
    return python


@contextlib.contextmanager
def folder(keep: pathlib.Path | None) -> Iterator[pathlib.Path]:
    """Yield the folder of the lakes."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="bench-pipeline-") as name:
        yield pathlib.Path(name)


# reporting ----------------------------------------------------------------------------------------


def per_second(built: Found) -> float:
    """Return the attempts per second."""
    return float(built["attempts"] / built["seconds"])


def slope(points: list[tuple[float, float]]) -> float:
    """Return the slope of the straight line through the logarithms (least squares); nan for one
    point."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x, mean_y = (statistics.fmean(values) for values in zip(*logs, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread if spread else math.nan


class Aim(NamedTuple):
    """A figure with its bounds."""

    what: str
    value: float
    least: float = -math.inf
    most: float = math.inf

    @property
    def is_met(self) -> bool:
        """True within the bounds, or without a figure: one size has no slope."""
        return math.isnan(self.value) or self.least <= self.value <= self.most

    @property
    def bounds(self) -> str:
        """The bounds, for people."""
        texts = [f"at least {self.least:,g}"] if self.least > -math.inf else []
        texts += [f"at most {self.most:,g}"] if self.most < math.inf else []
        return ", ".join(texts) + ("" if self.is_met else " (missed)")


def summary(results: dict[int, Found], cores: list[int]) -> list[Aim]:
    """Return the aims, for the largest size unless stated otherwise."""
    most = cores[-1]
    largest = results[max(results)]
    warm = {n: largest["build"][n]["warm"] for n in cores}
    times = [
        (found["build"][most]["warm"]["attempts"], found["build"][most]["warm"]["seconds"])
        for found in results.values()
    ]
    return [
        Aim(f"log-log slope of the warm build, all sizes, on {most}", slope(times), *GOAL_SLOPE),
        *(
            Aim(f"from {one[0]:,} to {other[0]:,}", slope([one, other]))
            for one, other in itertools.pairwise(times)
        ),
        *(
            Aim(
                f"speed-up, {most} cores / {n}",
                warm[n]["seconds"] / warm[most]["seconds"],
                GOAL_SPEED_UP,
            )
            for n in cores[:-1]
        ),
        Aim(f"attempts/s and core, on {most}", per_second(warm[most]) / most, GOAL_PER_CORE),
        *(
            Aim(
                f"the same aggregation, Spark / DuckDB, on {n}", ratio(largest, n), most=GOAL_DUCKDB
            )
            for n in cores
        ),
        *(
            Aim(
                f"an hour more at the largest size / at {rows:,}",
                largest["build"][most]["hour"]["seconds"] / found["build"][most]["hour"]["seconds"],
                most=GOAL_HOUR,
            )
            for rows, found in results.items()
            if found is not largest
        ),
        Aim(f"one hour more / all, on {most}", part_of_all(largest, most, "hour")),
        Aim(
            "the same with late rows for the day before",
            part_of_all(largest, most, "hour with late rows"),
        ),
    ]


def ratio(found: Found, cores: int) -> float:
    """Return the ratio of the warm times."""
    return float(
        found["spark"][cores]["warm"]["seconds"] / found["duckdb"][cores]["warm"]["seconds"]
    )


def part_of_all(found: Found, cores: int, pass_: str) -> float:
    """Return the time of one hour as a part of the time of everything."""
    built = found["build"][cores]
    return float(built[pass_]["seconds"] / built["warm"]["seconds"])


def versions(results: dict[int, Found]) -> dict[str, str]:
    """Return the versions of the engines."""
    found = next(iter(results.values()))
    return {name: next(iter(found[name].values()))[name] for name in ("spark", "duckdb")}


def as_markdown(
    results: dict[int, Found],
    cores: list[int],
    report: list[Aim],
    machine: dict[str, str],
    memory: str,
    runs: int,
) -> str:
    """Return the report for people."""
    today = datetime.datetime.now(datetime.UTC).date()
    lines = [
        (
            f"Made by `python bench/pipeline.py` on {today}; medians of {runs}; heap {memory}, else"
            " Fairlead's own settings."
        ),
        "",
        (
            "| attempts | cores | JVM start s | smallest, cold s | build s, warm | attempts/s, warm"
            " | per core | CPU s, warm | peak MB | one hour more s | with late rows s |"
        ),
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for found in results.values():
        for n in cores:
            built = found["build"][n]
            cold, warm = built["cold"], built["warm"]
            rate = per_second(warm)
            lines.append(
                f"| {warm['attempts']:,} | {n} | {built['start_s']:.1f} | {cold['seconds']:.1f} |"
                f" {warm['seconds']:.1f} | {rate:,.0f} | {rate / n:,.0f} | {warm['cpu_s']:.1f} |"
                f" {built['peak_mb']:,.0f} | "
                + " | ".join(
                    f"{built[pass_]['seconds']:.1f}" if pass_ in built else ""
                    for pass_ in HOUR_BUILDS
                )
                + " |"
            )
    lines += [
        "",
        (
            "The same aggregation (share by key and minute, hour, day; percentiles by name and"
            " hour), results equal:"
        ),
        "",
        (
            "| attempts | cores | Spark s, cold / warm | DuckDB s, cold / warm | ratio, warm | CPU"
            " s, Spark / DuckDB | peak MB |"
        ),
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for found in results.values():
        for n in cores:
            ours, theirs = found["spark"][n], found["duckdb"][n]
            lines.append(
                f"| {found['made']['attempts']:,} | {n} | {ours['cold']['seconds']:.1f} /"
                f" {ours['warm']['seconds']:.1f} | {theirs['cold']['seconds']:.2f} /"
                f" {theirs['warm']['seconds']:.2f} | {ratio(found, n):.1f} |"
                f" {ours['warm']['cpu_s']:.1f} / {theirs['warm']['cpu_s']:.1f} |"
                f" {ours['peak_mb']:,.0f} / {theirs['peak_mb']:,.0f} |"
            )
    lines += ["", "| | found | aim |", "|---|--:|--:|"]
    for aim in report:
        value = f"{aim.value:,.0f}" if aim.value > 1000 else f"{aim.value:.3g}"
        lines.append(f"| {aim.what} | {value} | {aim.bounds} |")
    largest = results[max(results)]["build"][cores[-1]]
    lines += ["", "| table | rows | build s, warm | one hour more s |", "|---|--:|--:|--:|"]
    for table, seconds in sorted(largest["warm"]["steps"].items(), key=lambda step: -step[1]):
        rows = f"{largest['warm']['rows'][table]:,.0f}" if table in largest["warm"]["rows"] else ""
        lines.append(
            f"| {table} | {rows} | {seconds:.1f} | {largest['hour']['steps'].get(table, 0):.1f} |"
        )
    lines += ["", *(f"- {name}: {value}" for name, value in machine.items())]
    return "\n".join(lines)


def plot(results: dict[int, Found], cores: list[int], path: pathlib.Path) -> None:
    """Plot seconds against attempts, both logarithmic, with a line of slope 1 through the
    largest."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for n, colour in zip(cores, ("#b3541e", "#1f6f8b", "#5a7d2a", "#7a4a8b"), strict=False):
        built = [found["build"][n]["warm"] for found in results.values()]
        axes.plot(
            [b["attempts"] for b in built],
            [b["seconds"] for b in built],
            "o-",
            color=colour,
            label=f"build, local[{n}]",
        )
        theirs = [
            (found["made"]["attempts"], found["duckdb"][n]["warm"]["seconds"])
            for found in results.values()
        ]
        axes.plot(
            *zip(*theirs, strict=True),
            "x--",
            color=colour,
            alpha=0.6,
            label=f"DuckDB, a part of it, {n} threads",
        )
    last = results[max(results)]["build"][cores[-1]]["warm"]
    ends = [min(found["made"]["attempts"] for found in results.values()), last["attempts"]]
    axes.plot(
        ends,
        [last["seconds"] * x / last["attempts"] for x in ends],
        color="#999999",
        linewidth=1,
        label="slope 1",
    )
    axes.set(xscale="log", yscale="log", xlabel="attempts", ylabel="seconds")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main())
