"""Long runs of ordered queues, judged by the records of their handlers; workers are processes,
started as a user starts them.

python bench/ordered.py trace      the LCG trace: ordering key = user, time = submit time, scaled
python bench/ordered.py kills      one worker restarted or killed each 10 s, during 50,000 tasks
python bench/ordered.py outage     each server of `--servers` stopped for 30 s under load
python bench/ordered.py million    1,000,000 tasks due at once: one worker's memory and drain rate
python bench/ordered.py steady     10,000 tasks a minute, due 0.5 to 20 s ahead: their lateness

Everything is on one SQLite file, unless other URLs are given; `--servers` starts Kafka and
Cassandra (or those named: kafka, cassandra, postgres) for the log, the schedule and the tasks. Exit
code 1 if a task was lost; if a task ran twice although no worker was killed during its first run;
if a task ran before its time, out of order or at the same time as another task of its ordering key;
or if an aim was missed.
"""

import argparse
import contextlib
import json
import pathlib
import random
import signal
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from ordered_judge import Away, Job, Verdict, judge, percentile, rate  # noqa: E402
from ordered_stage import SERVERS, Broken, Pace, Stage, now, say, submit  # noqa: E402
from process_tree import Peak  # noqa: E402

from fairlead.clock import MICROS  # noqa: E402
from fairlead.lab.trace import read_trace  # noqa: E402

TRACE = ROOT.parent / "shared" / "data" / "lcg-2005.swf.gz"
AHEAD = 2 * MICROS
"""Microseconds between the submit of a task and its due time."""
SORTED_OUT = 30 * MICROS
"""Microseconds after the return of a server in which the tasks of the outage may still be late."""
LATE_AGAIN = 2 * MICROS
"""Wait in microseconds above which an outage has affected a task."""
MOST_MB = 300
MOST_LATE = 1.0
"""Greatest lateness in steady state, p99, in seconds."""


@dataclass
class Course:
    """The course of one run."""

    jobs: list[Job] = field(default_factory=list)
    away: list[tuple[str, int, int]] = field(default_factory=list)
    """Outages: the server, start and end."""
    measured_from: int = 0
    """Time before which due tasks do not count for the lateness."""
    figures: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """Broken promises that no record shows."""
    aims: list[Callable[["Course"], str | None]] = field(default_factory=list)


# the runs -----------------------------------------------------------------------------------------


def trace(stage: Stage, wanted: argparse.Namespace, course: Course) -> None:
    """Run "trace"; see the module."""
    found = list(islice(read_trace(wanted.trace, lambda line: None), wanted.tasks))
    first = found[0].submit
    scale = wanted.seconds / max(1.0, found[-1].submit - first)
    stage.start_workers(wanted.workers)
    course.jobs += stage.warm_up()
    lead = 10 * MICROS
    begin = course.measured_from = now() + lead
    jobs = sorted(
        Job(
            f"user-{job.user}",
            f"{job.number:08}",
            begin + round((job.submit - first) * scale * MICROS),
        )
        for job in found
    )
    jobs.sort(key=lambda job: job.position)
    course.figures |= {"seconds": wanted.seconds, "users": len({job.ordering_key for job in jobs})}
    go(stage, course, wanted, Pace(stage, ((job.due - lead, job) for job in jobs)))


def kills(stage: Stage, wanted: argparse.Namespace, course: Course) -> None:
    """Run "kills"; see the module."""
    stage.start_workers(wanted.workers)
    course.jobs += stage.warm_up()
    course.measured_from = now()
    pace = Pace(stage, islice(evenly(wanted), wanted.tasks))
    disturbances = count()
    restarts: list[float] = []

    def disturb() -> None:
        stage.rest(wanted.every)
        number = next(disturbances)
        worker = stage.workers[number % len(stage.workers)]
        if number % 2:
            pid = worker.pid
            say(f"kills worker {worker.number}")
            stage.kills[pid] = worker.kill()
        else:
            say(f"restarts worker {worker.number}")
            began = time.monotonic()
            worker.restart()
            restarts.append(time.monotonic() - began)
        say(f"{stage.runs.ended():,} tasks have ended of {len(pace.submitted):,} submitted")

    go(stage, course, wanted, pace, disturb)
    course.figures |= {
        "kills": len(stage.kills),
        "restarts": len(restarts),
        "slowest_restart_s": round(max(restarts, default=0.0), 1),
    }


def outage(stage: Stage, wanted: argparse.Namespace, course: Course) -> None:
    """Run "outage"; see the module."""
    if not stage.servers:
        raise SystemExit("outage: name the servers to stop by --servers")
    stage.start_workers(wanted.workers)
    course.jobs += stage.warm_up()
    course.measured_from = now()
    pace = Pace(stage, evenly(wanted))

    def stop_servers() -> None:
        stage.rest(wanted.calm)
        for name, server in stage.servers.items():
            say(f"stops {name}")
            at = now()
            server.crash()
            stage.rest(wanted.away)
            server.start()
            course.away.append((name, at, now()))
            say(f"{name} is back")
            stage.rest(wanted.calm)
        pace.stop()

    go(stage, course, wanted, pace, stop_servers)


def million(stage: Stage, wanted: argparse.Namespace, course: Course) -> None:
    """Run "million"; see the module. The downtime is simulated by the worker's clock."""
    due = now() + round(wanted.downtime * MICROS)
    jobs = [Job(f"key-{n % wanted.keys}", f"{n:08}", due) for n in range(wanted.tasks)]
    began = time.monotonic()
    for low in range(0, len(jobs), 50_000):
        submit(stage, jobs[low : low + 50_000])
        say(f"{min(low + 50_000, len(jobs)):,} submitted")
    course.jobs = jobs
    course.figures |= {"keys": wanted.keys, "waiting_in": wanted.waiting}
    course.figures["submit_per_s"] = round(len(jobs) / (time.monotonic() - began))
    if wanted.waiting == "schedule":
        began = time.monotonic()
        with contextlib.ExitStack() as watching:
            stage.start_workers(wanted.workers)
            peaks = [watching.enter_context(Peak(worker.pid)) for worker in stage.workers]
            while lag := stage.lag():
                say(f"{lag:,} in the log")
                stage.rest(5)
        course.figures["intake_per_s"] = round(len(jobs) / (time.monotonic() - began))
        course.figures["intake_mb"] = round(max(peak.mb for peak in peaks))
        stage.stop_workers()
    with contextlib.ExitStack() as watching:
        stage.start_workers(wanted.workers, ORDERED_AHEAD=str(wanted.downtime + 60))
        peaks = [watching.enter_context(Peak(worker.pid)) for worker in stage.workers]
        stage.wait(len(jobs), wanted.patience)
    course.figures["drain_mb"] = round(max(peak.mb for peak in peaks))
    course.aims.append(
        lambda course: aim(
            "MB of a worker",
            max(course.figures.get("intake_mb", 0), course.figures["drain_mb"]),
            MOST_MB,
        )
    )


def steady(stage: Stage, wanted: argparse.Namespace, course: Course) -> None:
    """Run "steady"; see the module. Tasks due in the first seconds do not count."""
    stage.start_workers(wanted.workers)
    course.jobs += stage.warm_up()
    chance = random.Random(wanted.seed)
    begin = now()
    course.measured_from = begin + 20 * MICROS
    total = round(wanted.minutes * wanted.tasks)

    def jobs() -> Iterator[tuple[int, Job]]:
        for n in range(total):
            at = begin + round(n * 60 * MICROS / wanted.tasks)
            yield (
                at,
                Job(
                    f"key-{n % wanted.keys}",
                    f"{n:08}",
                    at + round(chance.uniform(0.5, 20) * MICROS),
                ),
            )

    course.figures |= {"per_minute": wanted.tasks, "minutes": wanted.minutes}
    go(stage, course, wanted, Pace(stage, jobs()))
    course.aims.append(
        lambda course: aim("late, seconds, p99", course.figures["late_ms"]["p99"] / 1000, MOST_LATE)
    )


def evenly(wanted: argparse.Namespace) -> Iterator[tuple[int, Job]]:
    """Yield jobs without end: `rate` tasks per second, in rotation over the ordering keys."""
    begin = now()
    for n in count():
        at = begin + round(n * MICROS / wanted.rate)
        yield at, Job(f"key-{n % wanted.keys}", f"{n:08}", at + AHEAD)


def go(
    stage: Stage,
    course: Course,
    wanted: argparse.Namespace,
    pace: Pace,
    disturb: Callable[[], None] | None = None,
) -> None:
    """Submit everything, calling `disturb` again and again meanwhile, and wait until all tasks have
    run."""
    before = len(course.jobs)
    try:
        while not pace.is_over:
            (disturb or (lambda: stage.rest(1.0)))()
    finally:
        pace.stop()
        course.jobs += pace.submitted
    course.figures |= {
        "submits_repeated": pace.repeated,
        "slowest_submit_s": round(pace.slowest, 2),
    }
    say(f"all {len(pace.submitted):,} submitted, {stage.runs.ended() - before:,} have ended")
    began = time.monotonic()
    stage.wait(len(course.jobs), wanted.patience)
    course.figures["drained_after_s"] = round(time.monotonic() - began, 1)


def aim(what: str, found: float, most: float) -> str | None:
    """Return the text of a missed aim, None if the aim is met."""
    return None if found < most else f"{what}: {found:g}, to be below {most:g}"


# results ------------------------------------------------------------------------------------------


def perform(wanted: argparse.Namespace) -> dict[str, Any]:
    """Perform the run, and return its report."""
    course = Course()
    with Stage(wanted, ORDERED_SECONDS=str(wanted.handler_seconds)) as stage:
        try:
            RUNS[wanted.run](stage, wanted, course)
            stage.stop_workers()
        except Broken as broken:
            course.faults.append(str(broken))
        lag, unfinished = stage.left()
        if lag or unfinished:
            course.faults.append(
                f"left in the log: {lag}; unfinished in the schedule: {unfinished}"
            )
        say("judges")
        away = [Away(begin, end + SORTED_OUT) for _, begin, end in course.away]
        verdict = judge(course.jobs, stage.runs.records(), stage.kills, away)
        course.figures |= figures(course, verdict)
        course.faults += [
            wrong
            for missed in course.aims
            if not course.faults and (wrong := missed(course)) is not None
        ]
        return {
            "run": wanted.run,
            **stage.where,
            "workers": wanted.workers,
            "tasks": verdict.tasks,
            "runs": verdict.runs,
            "ran_twice_in_flight": verdict.ran_twice,
            "cut_and_run_again": verdict.cut,
            **course.figures,
            "said_by_workers": stage.log_counts(),
            "violations": dict(verdict.violations),
            "first_violations": verdict.shown,
            "faults": course.faults,
            "is_met": not verdict.violations and not course.faults,
        }


def figures(course: Course, verdict: Verdict) -> dict[str, Any]:
    """Return the lateness of tasks, their rate, and the course of each outage."""
    found: dict[str, Any] = {"starts_per_s": round(rate(verdict.began_at))}
    if course.measured_from:
        counts = [
            at - late >= course.measured_from
            for at, late in zip(verdict.began_at, verdict.late, strict=True)
        ]
        found["late_ms"] = spread(verdict.late, counts)
        found["waited_ms"] = spread(verdict.waited, counts)
    for n, (name, begin, end) in enumerate(course.away):
        until = course.away[n + 1][1] if n + 1 < len(course.away) else now()
        late = [
            at
            for at, waited in zip(verdict.began_at, verdict.waited, strict=True)
            if waited > LATE_AGAIN and begin <= at < until
        ]
        found[f"{name}_away"] = {
            "seconds": round((end - begin) / MICROS, 1),
            "began_meanwhile": sum(begin <= at < end for at in verdict.began_at),
            "began_late": len(late),
            "as_usual_after_s": round(max(0, max(late, default=end) - end) / MICROS, 1),
        }
    return found


def spread(values: array, counts: list[bool]) -> dict[str, float]:
    """Return percentiles in milliseconds."""
    kept = sorted(value for value, is_counted in zip(values, counts, strict=True) if is_counted)
    parts = {"p50": 0.5, "p99": 0.99, "most": 1.0}
    return {name: round(1000 * percentile(kept, share), 1) for name, share in parts.items()}


RUNS: dict[str, Callable[[Stage, argparse.Namespace, Course], None]] = {
    "trace": trace,
    "kills": kills,
    "outage": outage,
    "million": million,
    "steady": steady,
}


def arguments() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--url", help="URL of the tasks, and of log and schedule by default")
    common.add_argument("--log", help="URL of the task log")
    common.add_argument("--schedule", help="URL of the schedule")
    common.add_argument(
        "--servers", nargs="?", const="kafka,cassandra", default="", help="servers to start and use"
    )
    common.add_argument(
        "--named",
        action="store_true",
        help="workers keep their names, and so partitions, over restarts",
    )
    common.add_argument("--keep", help="new folder for the files of the run, which are kept")
    common.add_argument(
        "--patience",
        type=float,
        default=120.0,
        help="seconds without the end of a task after which the run fails",
    )
    common.add_argument("--json", action="store_true", help="print the report on one line")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    runs = parser.add_subparsers(dest="run", required=True, metavar="RUN")

    def run(
        name: str, workers: int, keys: int | None, handler_seconds: float, help: str
    ) -> argparse.ArgumentParser:
        made = runs.add_parser(name, parents=[common], help=help)
        made.add_argument("--workers", type=int, default=workers)
        made.add_argument(
            "--handler-seconds",
            type=float,
            default=handler_seconds,
            help="mean time of a handler",
        )
        if keys is not None:
            made.add_argument("--keys", type=int, default=keys, help="ordering keys")
        return made

    one = run("trace", 3, None, 0.0, "a real trace, scaled in time")
    one.add_argument("--trace", type=pathlib.Path, default=TRACE)
    one.add_argument("--tasks", type=int, help="first jobs of the trace to submit; default: all")
    one.add_argument(
        "--seconds", type=float, default=900.0, help="seconds in which all are submitted"
    )
    one = run("kills", 3, 5000, 0.02, "restarts and kill -9")
    one.add_argument("--tasks", type=int, default=50_000)
    one.add_argument("--rate", type=float, default=250.0, help="tasks a second")
    one.add_argument("--every", type=float, default=10.0, help="seconds between kills or restarts")
    one = run("outage", 3, 5000, 0.02, "servers that are stopped")
    one.add_argument("--rate", type=float, default=100.0, help="tasks a second")
    one.add_argument("--away", type=float, default=30.0, help="seconds of an outage")
    one.add_argument(
        "--calm", type=float, default=30.0, help="seconds before, between and after outages"
    )
    one = run("million", 1, 100_000, 0.0, "a backlog that is due")
    one.add_argument("--tasks", type=int, default=1_000_000)
    one.add_argument("--downtime", type=float, default=10_800.0, help="seconds, simulated")
    one.add_argument(
        "--waiting",
        choices=("schedule", "log"),
        default="schedule",
        help="where the tasks are during the downtime",
    )
    one = run("steady", 3, 20_000, 0.0, "lateness")
    one.add_argument("--tasks", type=int, default=10_000, help="tasks a minute")
    one.add_argument("--minutes", type=float, default=5.0)
    one.add_argument("--seed", type=int, default=1)
    return parser


def main() -> int:
    parser = arguments()
    wanted = parser.parse_args()
    wanted.servers = [name for name in wanted.servers.split(",") if name]
    if unknown := set(wanted.servers) - SERVERS.keys():
        parser.error(
            f"--servers: {', '.join(sorted(unknown))} is unknown; there are {', '.join(SERVERS)}"
        )
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM")
    )  # ends workers and servers too
    report = perform(wanted)
    print(json.dumps(report, indent=None if wanted.json else 1), flush=True)
    return 0 if report["is_met"] else 1


if __name__ == "__main__":
    sys.exit(main())
