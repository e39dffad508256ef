"""One replay from start to end: an empty store, workers, submits at their times, the wait, the
report."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from uuid import uuid4

from fairlead.app import App
from fairlead.backends.sql.migrate import is_new
from fairlead.clock import MICROS
from fairlead.declare.task import Draft, Task
from fairlead.errors import ConfigurationError
from fairlead.lab.history import has_unfinished, is_empty
from fairlead.lab.replay.application import FOLDER, MODULE, ORDER, application
from fairlead.lab.replay.report import ReplayMeasures, ReplayReport, judge
from fairlead.lab.trace import BadLine, Tenants, TraceJob, TraceSurvey, read_trace, survey
from fairlead.lab.workers import WorkerProcesses
from fairlead.urls import query_of, split_url

CHUNK = 5_000
"""Jobs submitted in one transaction."""

_CHECK_SECONDS = 0.2
_STALLED_SECONDS = 60.0
"""Seconds without a run, beyond the longest run, after which unfinished jobs are reported as
lost."""

Progress = Callable[[int, int], None]
"""A callback with the numbers of submitted jobs and noted runs."""


@dataclass(frozen=True)
class ReplaySettings:
    """Options of a replay. Times of the trace are multiplied by `time_scale`; 0 submits everything
    at once, as no-ops."""

    trace: Path
    tenants: Tenants = Tenants.USER
    order: str = "fair"
    push_first: bool = False
    """True to submit everything before the first worker starts."""
    workers: int = 2
    concurrency: int | None = None
    time_scale: float = 0.0
    limit: int | None = None
    skip_bad: bool = False


def replay(
    url: str | None, settings: ReplaySettings, progress: Progress = lambda _submitted, _run: None
) -> ReplayReport:
    """Replay a trace through the store at `url`, which must be empty; None means a temporary SQLite
    file.

    Raise BrokenTrace for an unreadable trace before anything is submitted, ConfigurationError for
    bad settings or a store in use, StoreUnavailable while the store is unavailable, WorkerEnded if
    a worker ends by itself."""
    if settings.order not in ("fair", "fifo"):
        raise ConfigurationError(f"--order {settings.order}: use 'fair' or 'fifo'")
    found = survey(settings.trace, settings.tenants, settings.limit, settings.skip_bad)
    with tempfile.TemporaryDirectory(prefix="fairlead-replay-") as name:
        folder = Path(name)
        url = url or f"sqlite:///{folder / 'tasks.db'}"
        app, run_job = application(url, folder, settings.order)
        try:
            _need_empty(app)
            return _Replay(settings, found, app, run_job, folder, progress).run(url)
        finally:
            app.close()


@contextmanager
def own_schema(url: str | None) -> Iterator[str | None]:
    """Make a temporary schema for a PostgreSQL URL, and yield a URL that uses it. Yield None for
    any other URL, for which `replay` makes a SQLite file. Raise ConfigurationError if psycopg is
    missing."""
    if url is None or split_url(url).scheme not in ("postgres", "postgresql"):
        yield None
        return
    try:
        from psycopg import sql
    except ImportError as error:
        raise ConfigurationError("psycopg is missing: pip install 'fairlead[postgres]'") from error
    from fairlead.backends.postgres.database import PostgresDatabase

    database = PostgresDatabase(url)
    schema = f"fairlead_replay_{uuid4().hex[:12]}"
    try:
        with database.connection() as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        try:
            yield _with_search_path(url, schema)
        finally:
            with database.connection() as connection:
                connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
    finally:
        database.close()


class _Replay:
    """The parts of one replay."""

    def __init__(
        self,
        settings: ReplaySettings,
        found: TraceSurvey,
        app: App,
        run_job: Task[..., None],
        folder: Path,
        progress: Progress,
    ) -> None:
        self._settings = settings
        self._survey = found
        self._app = app
        self._run_job = run_job
        self._notes = _Notes(folder)
        self._folder = folder
        self._progress = progress
        self._submitted = 0
        self._tenants: dict[str, Task[..., None]] = {}
        self._pause = threading.Event()

    def run(self, url: str) -> ReplayReport:
        settings, clock = self._settings, self._app.clock
        environment = {"FAIRLEAD_URL": url, FOLDER: str(self._folder), ORDER: settings.order}
        begin = clock.now()
        if settings.push_first:
            self._submit(None)
        with WorkerProcesses(
            MODULE, settings.workers, self._folder, environment, settings.concurrency
        ) as workers:
            workers.wait_until_up(self._app)
            if not settings.push_first:
                begin = clock.now()
                self._submit(workers)
            self._wait(workers)
        measures = ReplayMeasures(self._app.sql_store, self._survey)
        judgement = judge((job.number for job in self._jobs()), self._notes.paths())
        seconds = (measures.last_finish - begin) / MICROS if measures.finished else 0.0
        return ReplayReport(
            trace=settings.trace.name,
            store=self._app.sql_store.database.location,
            tenants=str(settings.tenants),
            order=settings.order,
            workers=settings.workers,
            time_scale=settings.time_scale,
            bad_lines=self._survey.bad_lines,
            submitted=self._submitted,
            finished=measures.finished,
            lost=judgement.lost,
            ran_twice=judgement.ran_twice,
            seconds=round(seconds, 3),
            tasks_per_s=round(measures.finished / seconds, 1) if seconds > 0 else 0.0,
            pickup_delay=measures.everyone,
            pickup_delay_heaviest=measures.heaviest,
            pickup_delay_median=measures.median,
            positions=measures.positions,
            worker_peak_rss_mb=(
                None if workers.peak_memory is None else round(workers.peak_memory / 1e6, 1)
            ),
        )

    def _jobs(self) -> Iterator[TraceJob]:
        def leave_out(_line: BadLine) -> None: ...

        jobs = read_trace(self._settings.trace, leave_out if self._settings.skip_bad else None)
        return islice(jobs, self._settings.limit)

    def _submit(self, workers: WorkerProcesses | None) -> None:
        """Submit each job at its scaled time; jobs that are due together are submitted together."""
        scale, clock = self._settings.time_scale, self._app.clock
        begin = clock.monotonic()
        chunk: list[Draft] = []
        for job in self._jobs():
            wait = (
                begin + (job.submit - self._survey.first_submit) * scale - clock.monotonic()
                if scale
                else 0.0
            )
            if wait > 0 or len(chunk) >= CHUNK:
                self._send(chunk)
            while wait > 0:
                self._pause.wait(min(wait, _CHECK_SECONDS))
                self._check_progress(workers)
                wait = begin + (job.submit - self._survey.first_submit) * scale - clock.monotonic()
            chunk.append(
                self._of(job.tenant(self._settings.tenants)).draft(
                    job=job.number, seconds=job.run * scale
                )
            )
            if len(chunk) == 1:
                self._check_progress(workers)
        self._send(chunk)

    def _of(self, tenant: str) -> Task[..., None]:
        task = self._tenants.get(tenant)
        if task is None:
            task = self._tenants[tenant] = self._run_job.options(fairness_key=tenant)
        return task

    def _send(self, chunk: list[Draft]) -> None:
        self._app.submit_many(chunk)
        self._submitted += len(chunk)
        chunk.clear()

    def _wait(self, workers: WorkerProcesses) -> None:
        """Wait until nothing is left to run, or nothing has run for too long."""
        clock = self._app.clock
        patience = _STALLED_SECONDS + self._survey.longest_run * self._settings.time_scale
        seen, since = -1, clock.monotonic()
        while True:
            noted = self._check_progress(workers)
            if noted >= self._submitted and not has_unfinished(self._app.sql_store):
                return
            if noted != seen:
                seen, since = noted, clock.monotonic()
            elif clock.monotonic() - since > patience:
                return
            self._pause.wait(_CHECK_SECONDS)

    def _check_progress(self, workers: WorkerProcesses | None) -> int:
        if workers is not None:
            workers.check()
        noted = self._notes.count()
        self._progress(self._submitted, noted)
        return noted


class _Notes:
    """The files in which handlers note their runs, counted as they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, tuple[int, int]] = {}

    def paths(self) -> list[Path]:
        """Return one file for each worker that has run a job."""
        return sorted(self._folder.glob("*.runs"))

    def count(self) -> int:
        """Return the number of lines so far, reading only new ones."""
        for path in self.paths():
            offset, lines = self._read.get(path, (0, 0))
            with path.open("rb") as file:
                file.seek(offset)
                new = file.read()
            self._read[path] = (offset + len(new), lines + new.count(b"\n"))
        return sum(lines for _, lines in self._read.values())


def _need_empty(app: App) -> None:
    database = app.connections.store.as_sql().database
    if is_new(database):
        app.migrate()
    if not is_empty(app.sql_store):
        raise ConfigurationError(
            f"{database.location} holds tasks or their history already: a replay needs an empty"
            " store; give another --url, or --fresh for one that is made and removed by the replay"
        )


def _with_search_path(url: str, schema: str) -> str:
    option = query_of({"options": f"-csearch_path={schema}"})
    return f"{url}{'&' if split_url(url).query else '?'}{option}"
