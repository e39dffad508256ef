"""Replay of policies: 200 policies on the LCG trace in one Spark job, on one core and on two; and
the gap between simulated and recorded waits under fifo.

python bench/pipeline_replay.py [--trace ../shared/data/lcg-2005.swf.gz] [--only grid,gap]
    [--policies 200] [--limit N] [--cores 1,2] [--jobs 5000] [--time-scale 0.001] [--slots 100]
    [--json]

grid: run the policies once for each number of cores, in a process that is bound to as many cores.
The table has the start of the JVM with a first small job in a column of its own. `--limit`: replay
only the first N jobs of the trace. gap: run the first `--jobs` jobs of the trace on a real worker
(SQLite, fifo, times scaled), export them, and compare their waits with those of a replay from the
lake. Exit code 1 if two cores are less than 1.8 times as fast as one, or if results differ.
"""

import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT), str(ROOT / "src")]

import msgspec  # noqa: E402
from process_tree import cpu_seconds  # noqa: E402
from run import say  # noqa: E402

from fairlead.lab.policies import grid  # noqa: E402
from fairlead.lab.policies.arrivals import of_trace  # noqa: E402
from fairlead.lab.policies.candidate import Candidate, CandidateResult, Setup  # noqa: E402
from fairlead.lab.policies.policy import CandidatePolicy  # noqa: E402
from fairlead.lab.policies.study import HOUR  # noqa: E402

TRACE = ROOT.parent / "shared" / "data" / "lcg-2005.swf.gz"
GOAL_SPEED_UP = 1.8
LOADS = (0.85, 0.95, 1.05, 1.2, 1.4)
"""Slots as a multiple of the average number of busy slots of the trace."""

Answer = dict[str, Any]


def main() -> int:
    """Run both parts, or those that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=pathlib.Path, default=TRACE)
    parser.add_argument("--only", default="grid,gap")
    parser.add_argument("--policies", type=int, default=200)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--cores", default="1,2")
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--time-scale", type=float, default=0.001)
    parser.add_argument("--slots", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if not wanted.trace.is_file():
        parser.error(f"there is no {wanted.trace}; name a trace by --trace")
    if wanted.child:
        print(json.dumps(on_cores(wanted.child, wanted.trace, wanted.limit, wanted.policies)))
        return 0
    parts, found = wanted.only.split(","), {}
    if "grid" in parts:
        found["grid"] = {cores: child(int(cores), wanted) for cores in wanted.cores.split(",")}
    if "gap" in parts:
        found["gap"] = gap(wanted.trace, wanted.jobs, wanted.time_scale, wanted.slots)
    print(json.dumps(found, indent=1) if wanted.json else "\n".join(as_markdown(found)))
    return 0 if is_met(found.get("grid", {})) else 1


# the grid -----------------------------------------------------------------------------------------


def policies(busy: float, count: int) -> list[CandidatePolicy]:
    """Return at most `count` policies that differ in order, slots, weights, limits and partitions.
    `busy`: busy slots on average."""
    slots = [max(1, round(load * busy)) for load in LOADS]
    limits = ["none", {"per_key": max(1, slots[0] // 4)}, {"per_key": max(1, slots[0] // 2)}]
    weights = ["equal", "run^-1", "run^-0.5", "usage^-0.5", "usage^-0.25", "tasks^-0.5"]
    fair = {
        "order": "fair",
        "slots": slots,
        "limits": limits,
        "weights": weights,
        "partitions": [1, 4],
    }
    fifo = {
        "order": "fifo",
        "slots": slots,
        "limits": [*limits, {"per_key": max(1, slots[0] // 8)}],
    }
    return grid.parse({"grid": [fifo, fair]}).policies[:count]


def on_cores(cores: int, trace: pathlib.Path, limit: int | None, count: int) -> Answer:
    """Run all policies in one job, in this process."""
    from fairlead.pipeline.replay.on_spark import OnSpark
    from fairlead.pipeline.session import session

    arrivals = of_trace(trace, limit=limit)
    chosen = policies(float(arrivals.run.sum()) / max(1, arrivals.span), count)
    setup = Setup(None, HOUR, 0)
    began = time.perf_counter()
    spark = session(f"local[{cores}]", settings={"spark.driver.memory": "1g"})
    with OnSpark(spark, arrivals) as runner:
        first = [
            Candidate(n, CandidatePolicy(order="fifo", slots=10**6), "all") for n in range(cores)
        ]
        runner.perform(first, setup, lambda what, done: None)
        started, cpu = time.perf_counter(), cpu_seconds()
        found = runner.perform(
            [Candidate(n, policy, "all") for n, policy in enumerate(chosen)], setup, print_dot
        )
        seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu
    spark.stop()
    own = sorted(each.seconds for each in found)
    return {
        "tasks": len(arrivals),
        "policies": len(chosen),
        "start_s": started - began,
        "seconds": seconds,
        "cpu_s": cpu,
        "own_cpu_s": sum(own),
        "policy_cpu_s_median": own[len(own) // 2],
        "policy_cpu_s_most": own[-1],
        "digest": digest(found),
    }


def print_dot(what: str, done: int) -> None:
    """Print a dot for each run."""
    print("." * done, end="", file=sys.stderr, flush=True)


def digest(found: list[CandidateResult]) -> str:
    """Return the digest of all measures."""
    return hashlib.sha256(msgspec.json.encode([each.measures for each in found])).hexdigest()[:16]


def child(cores: int, wanted: argparse.Namespace) -> Answer:
    """Run a process bound to `cores` cores, the JVM included, and return its output."""
    say(f"{wanted.policies} policies on {cores} cores")
    ours = sorted(os.sched_getaffinity(0))[:cores]
    command = [
        "taskset",
        "-c",
        ",".join(map(str, ours)),
        sys.executable,
        __file__,
        "--child",
        str(cores),
    ]
    command += ["--trace", str(wanted.trace), "--policies", str(wanted.policies)]
    command += [] if wanted.limit is None else ["--limit", str(wanted.limit)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode})")
    found: Answer = json.loads(done.stdout.splitlines()[-1])
    say(f"  {found['seconds']:.1f} s, {found['seconds'] / found['policies']:.2f} s for each policy")
    return found


# the gap ------------------------------------------------------------------------------------------


def gap(trace: pathlib.Path, jobs: int, time_scale: float, slots: int) -> Answer:
    """Run the first jobs under fifo on a real worker, and simulate the same jobs."""
    with tempfile.TemporaryDirectory(prefix="fairlead-gap-") as name:
        here = pathlib.Path(name)
        url, lake = f"sqlite:///{here / 'tasks.db'}", str(here / "lake")
        (here / "grid.toml").write_text(
            f"[grid]\norder = ['fifo', 'fair']\nslots = {slots}\n[recorded]\norder = 'fifo'\nslots"
            f" = {slots}\n"
        )
        say(f"{jobs:,} jobs through a real worker")
        ran = fairlead(
            "replay",
            str(trace),
            "--url",
            url,
            "--order",
            "fifo",
            "--workers",
            "1",
            "--concurrency",
            str(slots),
            "--time-scale",
            str(time_scale),
            "--limit",
            str(jobs),
        )
        fairlead("pipeline", "ingest", "--url", url, "--lake", lake)
        replay = ("pipeline", "replay", "--policies", str(here / "grid.toml"), "--lake", lake)
        replayed = fairlead(*replay, "--here", "--perturbations", "0", "--resamples", "0")
    return {
        "lost": ran["lost"],
        "ran_twice": ran["ran_twice"],
        "slots": slots,
        **replayed["calibration"],
    }


def fairlead(*command: str) -> Answer:
    """Run one command with --json, and return its output."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-m", "fairlead", *command, "--json"],
        capture_output=True,
        text=True,
        env=environment,
    )
    if ran.returncode:
        raise SystemExit(
            f"fairlead {' '.join(command[:2])} failed ({ran.returncode}): {ran.stderr[-2000:]}"
        )
    found: Answer = json.loads(ran.stdout)
    return found


# output -------------------------------------------------------------------------------------------


def speed_up(found: dict[str, Answer]) -> float | None:
    """Return the speed-up from one core to two."""
    return found["1"]["seconds"] / found["2"]["seconds"] if {"1", "2"} <= found.keys() else None


def is_met(found: dict[str, Answer]) -> bool:
    """Return whether results are equal and two cores are fast enough."""
    gained = speed_up(found)
    return len({each["digest"] for each in found.values()}) <= 1 and (
        gained is None or gained >= GOAL_SPEED_UP
    )


def as_markdown(found: dict[str, Any]) -> list[str]:
    """Return both tables."""
    lines = []
    if grid := found.get("grid"):
        head = (
            "cores",
            "tasks",
            "policies",
            "one Spark job, s",
            "s for each",
            "CPU s of the median policy",
            "of the longest",
            "of all",
            "of the whole process",
        )
        lines += [f"| {' | '.join(head)} | start s |", "|" + "--:|" * (len(head) + 1)]
        for cores, each in grid.items():
            cells = [cores, f"{each['tasks']:,}", str(each["policies"]), f"{each['seconds']:.1f}"]
            cells += [
                f"{each['seconds'] / each['policies']:.2f}",
                f"{each['policy_cpu_s_median']:.2f}",
            ]
            cells += [
                f"{each[name]:.1f}"
                for name in ("policy_cpu_s_most", "own_cpu_s", "cpu_s", "start_s")
            ]
            lines.append(f"| {' | '.join(cells)} |")
        gained = speed_up(grid)
        same = (
            "the same results"
            if len({each["digest"] for each in grid.values()}) == 1
            else "RESULTS DIFFER"
        )
        lines += [
            "",
            f"{same}" + ("" if gained is None else f", {gained:.2f} times as fast on two cores"),
            "",
        ]
    if gap := found.get("gap"):
        lines += [
            (
                f"{gap['tasks']:,} jobs on {gap['slots']} slots, fifo; lost {gap['lost']}, ran"
                f" twice {gap['ran_twice']}; Kolmogorov-Smirnov distance {gap['ks']:.3f}"
            ),
            "",
            "| wait | recorded s | simulated s | gap |",
            "|---|--:|--:|--:|",
        ]
        for which in ("p50", "p99", "mean"):
            recorded, simulated = (
                gap[f"{kind}_{which}_us"] / 1e6 for kind in ("recorded", "simulated")
            )
            error = f"{100 * (simulated / recorded - 1):+.1f} %" if recorded else "-"
            lines.append(f"| {which} | {recorded:.3f} | {simulated:.3f} | {error} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
