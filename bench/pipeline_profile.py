"""Where the time of the jobs goes: one lake through build, report, check and the build of one more
hour, in one process.

python bench/pipeline_profile.py LAKE [--more LAKE]... [--cores 2] [--memory 4g]

LAKE is changed: its tables are built. `--more` is a lake whose bronze is appended before one more
build; the last of several builds is that of a warm process. Print for each step, and within a build
for each table, the wall seconds, the processor seconds of the JVM and of Python, and the numbers of
Spark's jobs and stages and of the classes that Spark generated and compiled, as a table in
Markdown. A build makes several tables at the same time, so the seconds of a table are those since
the table before it ended.
"""

import argparse
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fairlead.clock import SYSTEM_CLOCK  # noqa: E402
from fairlead.pipeline.bronze import ATTEMPTS  # noqa: E402
from fairlead.pipeline.jobs.build import JobContext, build  # noqa: E402
from fairlead.pipeline.jobs.checks import check  # noqa: E402
from fairlead.pipeline.jobs.report import report  # noqa: E402
from fairlead.pipeline.session import session  # noqa: E402
from fairlead.pipeline.settings import PipelineSettings  # noqa: E402
from fairlead.pipeline.warehouse.location import Location  # noqa: E402
from fairlead.pipeline.warehouse.warehouse import Warehouse  # noqa: E402
from services import iceberg  # noqa: E402

_TICKS = os.sysconf("SC_CLK_TCK")
HEADINGS = ("step", "wall s", "JVM CPU s", "Python CPU s", "jobs", "stages", "classes", "compile s")


class Counters(NamedTuple):
    """Counters since the start of the process."""

    wall_s: float
    jvm_cpu_s: float
    python_cpu_s: float
    jobs: int
    stages: int
    classes: int
    compile_s: float


class Meter:
    """Reads the counters of a Spark session and prints their growth."""

    def __init__(self, spark: Any) -> None:
        self._context = spark.sparkContext
        jvm = self._context._jvm
        self._process = pathlib.Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/stat")
        self._codegen = jvm.org.apache.spark.metrics.source.CodegenMetrics
        self._generator = jvm.org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator
        self.last = self.read()

    def read(self) -> Counters:
        """Return the counters now."""
        scheduler = self._context._jsc.sc().dagScheduler()
        return Counters(
            time.monotonic(),
            sum(map(int, self._process.read_text().rpartition(")")[2].split()[11:13])) / _TICKS,
            time.process_time(),
            int(str(scheduler.nextJobId())),
            int(str(scheduler.nextStageId())),
            self._codegen.METRIC_COMPILATION_TIME().getCount(),
            self._generator.compileTime() / 1e9,  # codespell:ignore compiletime
        )

    def lap(self, name: str, before: Counters | None = None) -> None:
        """Print the growth since `before`, by default since the last lap."""
        now = self.read()
        grown = [after - earlier for after, earlier in zip(now, before or self.last, strict=True)]
        shown = [f"{value:.1f}" if isinstance(value, float) else str(value) for value in grown]
        print(f"| {name} | {' | '.join(shown)} |", flush=True)
        self.last = now


def main() -> int:
    """Run the steps on one session."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lake", type=pathlib.Path)
    parser.add_argument("--more", type=pathlib.Path, action="append", default=[])
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="4g")
    arguments = parser.parse_args()
    lake = Warehouse(Location.of(arguments.lake))
    jars = [iceberg.jar(), *iceberg.catalog_jars()]
    settings = {
        "spark.driver.memory": arguments.memory,
        "spark.jars": ",".join(map(str, jars)),
        **dict(each.split("=", 1) for each in arguments.set),
    }
    spark = session(f"local[{arguments.cores}]", settings=settings, warehouse=lake)
    meter = Meter(spark)
    job = JobContext(spark, lake, SYSTEM_CLOCK)
    print("| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|", sep="\n")

    def step(name: str, run: Callable[[], object]) -> None:
        before = meter.read()
        run()
        meter.lap(f"**{name}**", before)

    def built() -> object:
        return build(
            job,
            PipelineSettings(),
            on_rows=lambda table, rows: meter.lap(f"{table}, {rows:,} rows"),
        )

    with tempfile.TemporaryDirectory() as folder:
        step("build", built)
        step("report", lambda: report(lake, job.clock, pathlib.Path(folder) / "report.html"))
        step("check", lambda: check(lake, job.clock))
        for more in arguments.more:
            append(Warehouse(Location.of(more)), lake)
            step("build of one more hour", built)
    spark.stop()
    return 0


def append(source: Warehouse, target: Warehouse) -> None:
    """Append the bronze attempts of a lake to another one."""
    rows, table = source.table(ATTEMPTS).load(), target.table(ATTEMPTS)
    seen = table.state()
    table.append(table.write(rows, "more", seen), {}, seen)


if __name__ == "__main__":
    sys.exit(main())
