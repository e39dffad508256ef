"""Fairlead compared with the alternatives of its users: alternating rounds of one run, and the
median of the rounds.

python bench/run.py [--tasks 30000] [--runs 3] [--only fairlead-sqlite,huey-sqlite]
    [--peers pgqueuer,taskiq | all | none] [--json] [--write]

bench/README.md describes what is measured and what must be installed.
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT), str(ROOT / "src")]

from peers_fairlead import PEERS  # noqa: E402

DEFAULT_PEERS = ("pgqueuer", "huey-sqlite", "huey-sqlite-fsync", "taskiq")
FSYNC = "-fsync"
"""End of the name of a peer that runs with its setting `fsync=True`."""
OTHER_PEERS = ("celery", "dramatiq", "rq", "arq", "procrastinate", "awa")
ON_POSTGRES = ("pgqueuer", "procrastinate", "awa")
ON_REDIS = ("taskiq", "celery", "dramatiq", "rq", "arq")
VENV = HERE / ".venv"
REPORT = ROOT / "docs" / "benchmarks.md"
SECTION = "## Fairlead and other task queues\n"
"""Heading of the part of the page that `--write` replaces."""
NEXT = "\n## "
MOST_SECONDS = 400


@dataclass(frozen=True)
class Entry:
    """One system to measure in every round."""

    name: str
    what: str
    peer: bool = False
    arguments: tuple[str, ...] = ()


OURS = (
    Entry("fairlead-sqlite", "SQLite, synchronous=FULL"),
    Entry("fairlead-pg", "PostgreSQL"),
    Entry("fairlead-sqlite-2", "SQLite, 2 workers", arguments=("--workers", "2", "--no-latency")),
    Entry("fairlead-pg-2", "PostgreSQL, 2 workers", arguments=("--workers", "2", "--no-latency")),
    Entry(
        "fairlead-pg-idle",
        "PostgreSQL, beside an idle transaction",
        arguments=("--idle-transaction", "--no-latency"),
    ),
)
STORES = ("fairlead-sqlite", "fairlead-pg")
BACKING = {
    "pgqueuer": "PostgreSQL",
    "huey-sqlite": "SQLite, no fsync, at most once",
    "huey-sqlite-fsync": "SQLite, fsync, at most once",
    "taskiq": "Redis streams",
}


@dataclass(frozen=True)
class Ratio:
    """One aim: a measure of one entry divided by a measure of another, and its bound."""

    what: str
    ours: str
    theirs: str
    measure: str
    aim: float
    smaller_is_better: bool = False


RATIOS = (
    Ratio("drain, PostgreSQL / PgQueuer", "fairlead-pg", "pgqueuer", "done_per_s", 2.0),
    Ratio("drain, SQLite / Huey", "fairlead-sqlite", "huey-sqlite", "done_per_s", 5.0),
    Ratio(
        "drain, SQLite / Huey with fsync", "fairlead-sqlite", "huey-sqlite-fsync", "done_per_s", 5.0
    ),
    Ratio("bulk submit, PostgreSQL / PgQueuer", "fairlead-pg", "pgqueuer", "enqueue_per_s", 3.0),
    Ratio("latency p50, SQLite / Taskiq", "fairlead-sqlite", "taskiq", "p50_ms", 1.0, True),
    Ratio("latency p50, PostgreSQL / PgQueuer", "fairlead-pg", "pgqueuer", "p50_ms", 1.0, True),
    Ratio(
        "drain, SQLite, 2 workers / 1", "fairlead-sqlite-2", "fairlead-sqlite", "done_per_s", 1.0
    ),
    Ratio("drain, PostgreSQL, 2 workers / 1", "fairlead-pg-2", "fairlead-pg", "done_per_s", 1.0),
    Ratio(
        "drain, PostgreSQL, beside an idle transaction / without",
        "fairlead-pg-idle",
        "fairlead-pg",
        "done_per_s",
        0.8,
    ),
)


@dataclass
class Results:
    """All rounds of all entries."""

    rounds: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    failed_rounds: int = 0

    def add(self, entry: Entry, found: dict[str, Any]) -> None:
        """Add one round; list a failed one as a problem, without figures."""
        if "error" in found:
            self.failed_rounds += 1
            self.problems.append(
                f"{entry.name}: a round failed and is not in its median: {found['error']}"
            )
            say(self.problems[-1])
            return
        latency = found["latency_ms"]
        found |= {"p50_ms": latency["p50"], "p99_ms": latency["p99"]}
        self.rounds.setdefault(entry.name, []).append(found)

    def median(self, name: str, measure: str) -> float | None:
        """Return the median over the rounds, None if there is no figure."""
        values = [
            found[measure] for found in self.rounds.get(name, []) if found.get(measure) is not None
        ]
        return statistics.median(values) if values else None

    def ratio(self, ratio: Ratio) -> float | None:
        """Return the ratio of the medians."""
        ours, theirs = (
            self.median(ratio.ours, ratio.measure),
            self.median(ratio.theirs, ratio.measure),
        )
        return ours / theirs if ours is not None and theirs else None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=30_000)
    parser.add_argument("--runs", type=int, default=3, help="rounds; the median of them counts")
    parser.add_argument("--only", default="", help="names of entries, comma-separated")
    parser.add_argument("--peers", default=",".join(DEFAULT_PEERS), help="names, `all` or `none`")
    parser.add_argument(
        "--peers-python", type=pathlib.Path, help=f"an interpreter with the peers; default: {VENV}"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.relative_to(ROOT)}")
    wanted = parser.parse_args()
    if wanted.tasks < 1000 or wanted.runs < 1:
        parser.error("--tasks: at least 1000; --runs: at least 1")
    results = Results()
    peers = choose_peers(wanted.peers, results, parser.error)
    entries = [*OURS, *(Entry(name, BACKING.get(name, ""), peer=True) for name in peers)]
    if wanted.only:
        names = set(wanted.only.split(","))
        if unknown := names - {entry.name for entry in entries}:
            parser.error(
                f"--only {', '.join(sorted(unknown))}: known are"
                f" {', '.join(entry.name for entry in entries)}"
            )
        entries = [entry for entry in entries if entry.name in names]
    python = pathlib.Path(sys.executable)
    if any(entry.peer for entry in entries):
        python = wanted.peers_python or peers_python(bool(set(peers) & set(OTHER_PEERS)))
    with contextlib.ExitStack() as services:
        new_database = start_postgres(services, entries, results)
        redis_url = start_redis(services, entries, results)
        entries = [
            entry
            for entry in entries
            if can_run(entry, new_database is not None, redis_url is not None)
        ]
        for number in range(wanted.runs):
            # Run every other round backwards, so that no entry always follows the same neighbour.
            for entry in entries if number % 2 == 0 else reversed(entries):
                say(f"round {number + 1} of {wanted.runs}: {entry.name}")
                results.add(entry, measure(entry, wanted.tasks, python, new_database, redis_url))
    machine = describe_machine(python)
    if wanted.json:
        print(json.dumps(as_json(results, entries, machine, wanted.tasks, wanted.runs), indent=1))
    else:
        print(as_markdown(results, entries, machine, wanted.tasks, wanted.runs))
    if wanted.write:
        page, report = (
            REPORT.read_text(),
            as_markdown(results, entries, machine, wanted.tasks, wanted.runs),
        )
        before, _, after = page.partition(SECTION)
        REPORT.write_text(f"{before}{report.rstrip()}\n\n## {after.partition(NEXT)[2]}")
        say(f"written: {REPORT.relative_to(ROOT)}")
    return 1 if results.failed_rounds else 0


def say(text: str) -> None:
    """Print progress to stderr; results go to stdout."""
    print(text, file=sys.stderr, flush=True)


def choose_peers(text: str, results: Results, refuse: Callable[[str], Any]) -> list[str]:
    """Return the peers to measure, none if their folder is missing."""
    if text == "none":
        return []
    names = (
        [*DEFAULT_PEERS, *OTHER_PEERS]
        if text == "all"
        else [name for name in text.split(",") if name]
    )
    if unknown := set(names) - {*DEFAULT_PEERS, *OTHER_PEERS}:
        refuse(
            f"--peers {', '.join(sorted(unknown))}: known are"
            f" {', '.join([*DEFAULT_PEERS, *OTHER_PEERS])}, all, none"
        )
    if not (PEERS / "peers.py").is_file():
        results.problems.append(
            "no peers measured: the folder ../shared/bench/peers is not beside this repository"
        )
        say(results.problems[-1])
        return []
    return names


def peers_python(with_others: bool) -> pathlib.Path:
    """Return the interpreter of the benchmark's virtual environment, made if it is missing or out
    of date."""
    files = [HERE / "requirements.txt", *([HERE / "requirements-all.txt"] if with_others else [])]
    stamp, python = VENV / f".installed-{len(files)}", VENV / "bin" / "python"
    text = "".join(file.read_text() for file in files)
    if not stamp.is_file() or stamp.read_text() != text:
        say("making the virtual environment of the peers in bench/.venv")
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for file in files:
            install += ["-r", str(file)]
        subprocess.run(install, check=True)
        stamp.write_text(text)
    return python


def can_run(entry: Entry, has_postgres: bool, has_redis: bool) -> bool:
    """Return False for an entry whose server is missing, which was reported before."""
    if entry.name.startswith("fairlead-pg") or entry.name in ON_POSTGRES:
        return has_postgres
    return has_redis or entry.name not in ON_REDIS


def start_postgres(
    services: contextlib.ExitStack, entries: list[Entry], results: Results
) -> Callable[[], str] | None:
    """Return a function that gives an empty database: of $PG_DSN, otherwise of a server started
    here."""
    if not any(not can_run(entry, has_postgres=False, has_redis=True) for entry in entries):
        return None
    if given := os.environ.get("PG_DSN"):
        import psycopg

        with psycopg.connect(given) as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
            ).fetchone()
        if row is None or row[0]:
            sys.exit(
                "PG_DSN: that database has tables in its schema `public`, which this benchmark"
                " drops: give an empty one"
            )
        return lambda: given
    from services import MissingProgram
    from services.postgres import PostgresServer

    try:
        return services.enter_context(PostgresServer()).create_database
    except MissingProgram as missing:
        results.problems.append(f"nothing measured on PostgreSQL: {missing}")
        say(results.problems[-1])
        return None


def start_redis(
    services: contextlib.ExitStack, entries: list[Entry], results: Results
) -> str | None:
    """Return $REDIS_URL, otherwise the URL of a server started here; None if Redis is missing."""
    if not any(entry.name in ON_REDIS for entry in entries):
        return None
    if given := os.environ.get("REDIS_URL"):
        import redis

        if redis.Redis.from_url(given).dbsize():
            sys.exit(
                "REDIS_URL: that server holds keys, which this benchmark deletes: give an empty one"
            )
        return given
    program = shutil.which("redis-server")
    if program is None:
        results.problems.append(
            "nothing measured on Redis: redis-server is missing: apt-get install redis-server"
        )
        say(results.problems[-1])
        return None
    return services.enter_context(redis_server(program))


@contextlib.contextmanager
def redis_server(program: str) -> Iterator[str]:
    """Start a Redis on a free port of the loopback, and yield its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="bench-redis-") as folder:
        command = [
            program,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
            folder,
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for_port(port, process)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()
            process.wait()


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a process listens on the port."""
    end = time.monotonic() + 10
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError("redis-server did not start")


def measure(
    entry: Entry,
    tasks: int,
    peers_python: pathlib.Path,
    new_database: Callable[[], str] | None,
    redis_url: str | None,
) -> dict[str, Any]:
    """Measure one round of one entry, in a process of its own, so that no memory of the previous
    round is left."""
    environment = dict(os.environ)
    if new_database is not None:
        environment["PG_DSN"] = new_database()
    if redis_url is not None:
        environment["REDIS_URL"] = redis_url
    with programs(entry) as folder:
        if entry.peer:
            name = entry.name.removesuffix(FSYNC)
            command = [str(peers_python), str(folder / "peers.py"), "--only", name]
            environment.pop("PYTHONPATH", None)
        else:
            store = next(name for name in STORES if entry.name.startswith(name))
            command = [sys.executable, str(folder / "peers_fairlead.py"), "--only", store]
        try:
            done = subprocess.run(
                [*command, "--tasks", str(tasks), *entry.arguments],
                env=environment,
                capture_output=True,
                text=True,
                timeout=MOST_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"not finished after {MOST_SECONDS} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"error": f"no result; exit code {done.returncode}: {done.stderr.strip()[-500:]}"}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


@contextlib.contextmanager
def programs(entry: Entry) -> Iterator[pathlib.Path]:
    """Yield the folder with the program that measures the entry: for a peer with fsync, a copy of
    the peers' programs with this setting."""
    if not entry.name.endswith(FSYNC):
        yield PEERS if entry.peer else HERE
        return
    with tempfile.TemporaryDirectory(prefix="bench-peers-") as name:
        folder = pathlib.Path(name)
        for program in PEERS.glob("*.py"):
            text = program.read_text()
            (folder / program.name).write_text(text.replace("fsync=False", "fsync=True"))
        yield folder


def describe_machine(python: pathlib.Path) -> dict[str, str]:
    """Return the facts about the machine that the figures depend on."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    import sqlite3

    import fairlead

    machine = {
        "processor": f"{model}, {os.cpu_count()} cores",
        "memory": f"{memory:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        "Fairlead": fairlead.__version__,
    }
    for program in ("postgres", "redis-server"):
        if path := shutil.which(program) or next(
            (
                str(found)
                for found in sorted(pathlib.Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))
            ),
            None,
        ):
            answer = subprocess.run(
                [path, "--version"], capture_output=True, text=True, check=False
            )
            machine[program] = answer.stdout.strip()
    if python != pathlib.Path(sys.executable):
        listed = subprocess.run(
            [str(python), "-m", "pip", "list", "--format=json"],
            capture_output=True,
            text=True,
            check=False,
        )
        with contextlib.suppress(json.JSONDecodeError):
            versions = {found["name"]: found["version"] for found in json.loads(listed.stdout)}
            for name in ("pgqueuer", "huey", "taskiq", "taskiq-redis", *OTHER_PEERS):
                if name in versions:
                    machine[name] = versions[name]
    return machine


def as_json(
    results: Results, entries: list[Entry], machine: dict[str, str], tasks: int, runs: int
) -> dict[str, Any]:
    """Return everything, for programs."""
    measures = ("enqueue_per_s", "done_per_s", "p50_ms", "p99_ms", "peak_rss_mb")
    return {
        "machine": machine,
        "tasks": tasks,
        "runs": runs,
        "medians": {
            entry.name: {measure: results.median(entry.name, measure) for measure in measures}
            for entry in entries
            if entry.name in results.rounds
        },
        "ratios": [
            {
                "what": ratio.what,
                "ratio": round(value, 3),
                "aim": ratio.aim,
                "smaller_is_better": ratio.smaller_is_better,
            }
            for ratio in RATIOS
            if (value := results.ratio(ratio)) is not None
        ],
        "rounds": results.rounds,
        "problems": results.problems,
    }


def as_markdown(
    results: Results, entries: list[Entry], machine: dict[str, str], tasks: int, runs: int
) -> str:
    """Return the report for people."""
    lines = [
        SECTION,
        (
            "Command: `make bench`, which runs `python bench/run.py`."
            f" {tasks:,} no-op tasks, medians of {runs} rounds,"
            " one worker process unless the table says otherwise."
            " `bench/README.md` describes each measurement."
        ),
        "",
        "| | backing | bulk submit/s | done/s | latency p50 / p99 ms | peak RSS of the worker |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for entry in entries:
        if entry.name not in results.rounds:
            continue
        p50, p99 = results.median(entry.name, "p50_ms"), results.median(entry.name, "p99_ms")
        memory = results.median(entry.name, "peak_rss_mb")
        lines.append(
            f"| {entry.name} | {entry.what} | {_whole(results.median(entry.name, 'enqueue_per_s'))}"
            f" | {_whole(results.median(entry.name, 'done_per_s'))} |"
            f" {'' if p50 is None else f'{p50:.1f} / {p99:.1f}'} |"
            f" {'' if memory is None else f'{memory:.0f} MB'} |"
        )
    lines += ["", "| ratio | measured | aim |", "|---|--:|--:|"]
    for ratio in RATIOS:
        value = results.ratio(ratio)
        if value is not None:
            bound = f"{'at most' if ratio.smaller_is_better else 'at least'} {ratio.aim:g}"
            is_met = value <= ratio.aim if ratio.smaller_is_better else value >= ratio.aim
            lines.append(f"| {ratio.what} | {value:.2f} | {bound}{'' if is_met else ' (missed)'} |")
    lines += ["", "### The machine", "", *(f"- {name}: {value}" for name, value in machine.items())]
    if results.problems:
        lines += [
            "",
            "### What failed or was not measured",
            "",
            *(f"- {problem}" for problem in dict.fromkeys(results.problems)),
        ]
    return "\n".join(lines) + "\n"


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
