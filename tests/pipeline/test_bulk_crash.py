"""Real processes of a bulk submit die at every point, and no task is lost or doubled."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from fairlead import App
from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.bulk.job import BulkJob
from fairlead.pipeline.bulk.jobs import RunSuperseded, StageLost, SubmissionTotals
from fairlead.pipeline.bulk.stage import DAY, PostgresStage, SqliteStage, sweep
from tests.pipeline.bulk import job_of, left_in_stage, numbers, numbers_in, rows, staged, submit

ALL = list(range(200))
PARTS = [[numbers(0, 60), numbers(60, 100)], [numbers(100, 200)]]


@pytest.fixture
def url(store_url: str) -> Iterator[str]:
    """Yield the URL of a fresh, migrated store of each kind in turn."""
    application = App(store_url)
    application.migrate()
    application.close()
    yield store_url


def dies(work: Any, *arguments: Any) -> None:
    """Run `work` in its own process, which must kill itself."""
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def opened(url: str, **options: str) -> BulkJob:
    job = job_of(url, **options)
    job.open(numbers(0, 1).schema)
    return job


# parts and attempts ----------------------------------------------------------------------------------------


def test_an_executor_that_dies_while_it_stages_leaves_nothing_and_its_next_attempt_counts(
    url: str,
) -> None:
    job = opened(url)

    def dying() -> None:
        def batches() -> Iterator[pa.RecordBatch]:
            yield from PARTS[0]
            die()

        job.stage(batches(), 0)

    dies(dying)
    if url.startswith("postgres"):
        assert left_in_stage(url) == 0
    job.publish([job.stage(part, number) for number, part in enumerate(PARTS)])
    assert numbers_in(url) == ALL and left_in_stage(url) == 0


def test_an_executor_that_dies_after_it_has_staged_leaves_an_unpublished_part(
    url: str,
) -> None:
    job = opened(url)

    def dying() -> None:
        job.stage(PARTS[0], 0)
        die()

    dies(dying)
    assert left_in_stage(url) > 0
    job.publish([job.stage(part, number) for number, part in enumerate(PARTS)])
    assert numbers_in(url) == ALL and left_in_stage(url) == 0


@pytest.mark.parametrize("winner", [0, 1])
def test_of_two_finished_attempts_only_the_one_named_by_the_driver_counts(
    url: str, winner: int
) -> None:
    job = opened(url)
    attempts = [job.stage(PARTS[0], 0) for _ in range(2)]
    other = job.stage(PARTS[1], 1)
    with pytest.raises(ValueError, match="two messages of one part"):
        job.publish([*attempts, other])
    job.publish([attempts[winner], other])
    assert numbers_in(url) == ALL


def test_an_attempt_that_finishes_after_the_commit_changes_nothing_and_its_rows_are_removed(
    url: str,
) -> None:
    job = opened(url)
    job.publish([job.stage(part, number) for number, part in enumerate(PARTS)])
    job.stage(PARTS[0], 0)
    assert numbers_in(url) == ALL and left_in_stage(url) > 0
    app = App(url)
    app.store.database.run(sweep(app.store, SYSTEM_CLOCK.now() + 2 * DAY))
    app.close()
    assert numbers_in(url) == ALL and left_in_stage(url) == 0


def test_a_driver_that_dies_before_it_publishes_is_followed_by_a_run_that_ignores_its_parts(
    url: str,
) -> None:
    def dying() -> None:
        staged(job_of(url), PARTS)
        die()

    dies(dying)
    assert left_in_stage(url) > 0 and numbers_in(url) == []
    assert submit(url, PARTS).inserted == 200
    assert numbers_in(url) == ALL and left_in_stage(url) == 0


@pytest.mark.parametrize("rows_in", [0, 100])
def test_a_driver_that_dies_in_the_publishing_transaction_has_published_nothing(
    url: str, rows_in: int
) -> None:
    def dying() -> None:
        job = job_of(url)
        messages = staged(job, PARTS)
        stage: Any = PostgresStage if url.startswith("postgres") else SqliteStage
        insert = stage.insert

        def insert_and_die(self: Any, row: Any, pieces: Any, now: int) -> Any:
            for piece in pieces:
                if piece.attempt == messages[rows_in // 100].attempt:
                    die()
                yield from insert(self, row, [piece], now)

        stage.insert = insert_and_die
        job.publish(messages)

    dies(dying)
    assert numbers_in(url) == []
    assert submit(url, PARTS).inserted == 200
    assert numbers_in(url) == ALL


def test_a_driver_that_dies_after_the_commit_is_followed_by_a_run_that_changes_nothing(
    url: str,
) -> None:
    def dying() -> None:
        job = job_of(url)
        messages = staged(job, PARTS)
        publish = BulkJob._publish
        BulkJob._publish = lambda *given: (publish(*given), die())  # type: ignore[assignment]
        job.publish(messages)

    dies(dying)
    assert numbers_in(url) == ALL
    again = opened(url)
    assert not again.opened.needs_rows
    assert again.publish([]) == SubmissionTotals(
        "march", staged=200, inserted=200, duplicate=0, rejected=0, publish="atomic"
    )
    assert numbers_in(url) == ALL and left_in_stage(url) == 0


def test_a_former_driver_that_continues_while_another_run_stages_is_refused(url: str) -> None:
    old = job_of(url)
    old_messages = staged(old, PARTS)
    new = opened(url)
    with pytest.raises(RunSuperseded, match="another run has taken over"):
        old.publish(old_messages)
    with pytest.raises(RunSuperseded):
        old.stage(PARTS[0], 2)
    old.abort()
    assert numbers_in(url) == []
    assert (
        new.publish([new.stage(part, number) for number, part in enumerate(PARTS)]).inserted == 200
    )
    assert numbers_in(url) == ALL


def test_a_former_driver_that_continues_after_another_run_has_published_changes_nothing(
    url: str,
) -> None:
    old = job_of(url)
    old_messages = staged(old, PARTS)
    totals = submit(url, PARTS)
    assert old.publish(old_messages) == totals
    old.abort()
    assert (
        numbers_in(url) == ALL
        and rows(url, "SELECT state FROM fairlead_bulk_jobs")[0]["state"] == "committed"
    )


# in chunks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["between two chunks", "in a chunk"])
def test_a_driver_that_dies_between_chunks_is_followed_by_a_run_that_continues(
    url: str, where: str
) -> None:
    def dying() -> None:
        job = job_of(url, publish="chunked", rows_per_chunk="30")
        messages = staged(job, PARTS)
        advance = BulkJob._advance

        def advance_and_die(self: Any, stage: Any, most: int) -> Any:
            done = yield from advance(self, stage, most)
            if done[0].published_through > 90:
                die()
            return done

        def wait_and_die(self: Any, stage: Any, job: Any) -> None:
            if job.published_through >= 90:
                die()

        if where == "in a chunk":
            BulkJob._advance = advance_and_die  # type: ignore[method-assign]
        else:
            BulkJob._wait_for_room = wait_and_die  # type: ignore[method-assign]
        job.publish(messages)

    dies(dying)
    assert numbers_in(url) == ALL[:90]
    again = opened(url)
    assert again.publish([]).inserted == 200
    assert numbers_in(url) == ALL and left_in_stage(url) == 0


def test_two_simultaneous_runs_that_publish_one_job_in_chunks_publish_each_row_once(
    url: str,
) -> None:
    first = job_of(url, publish="chunked", rows_per_chunk="7")
    messages = staged(first, PARTS)
    errors: list[Exception] = []

    def publish() -> None:
        try:
            first.publish(messages)
        except RunSuperseded as error:
            errors.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    while not rows(url, "SELECT 1 FROM fairlead_bulk_jobs WHERE published_through > 0"):
        pass
    second = opened(url, publish="chunked", rows_per_chunk="7")
    assert second.publish([]).inserted == 200
    thread.join()
    assert len(errors) <= 1
    assert numbers_in(url) == ALL


def test_lost_staged_rows_raise_an_error(url: str) -> None:
    job = job_of(url)
    messages = staged(job, PARTS)
    if url.startswith("postgres"):
        rows(url, "DELETE FROM fairlead_bulk_stage WHERE ordinal = 17 RETURNING ordinal")
    else:
        next(
            Path(url.removeprefix("sqlite:///") + "-bulk").rglob(f"{messages[0].attempt}.arrow")
        ).unlink()
    with pytest.raises(StageLost):
        job.publish(messages)
    assert numbers_in(url) == []


def test_fewer_staged_rows_than_recorded_raise_an_error(url: str) -> None:
    job = job_of(url)
    first, second = staged(job, PARTS)
    with pytest.raises(StageLost):
        job.publish([msgspec.structs.replace(first, rows=101), second])
    assert numbers_in(url) == []


# at the same time ---------------------------------------------------------------------------------


def test_jobs_that_claim_the_same_keys_in_opposite_orders_do_not_dead_lock(url: str) -> None:
    count = 2000
    keys = [f"key-{n:05}" for n in range(count)]
    jobs = [job_of(url, submission_id=name) for name in ("up", "down")]
    messages = [
        staged(jobs[0], [[numbers(0, count, unique_key=pa.array(keys))]]),
        staged(jobs[1], [[numbers(0, count, unique_key=pa.array(keys[::-1]))]]),
    ]
    totals: list[SubmissionTotals] = []
    threads = [
        threading.Thread(target=lambda job=job, m=m: totals.append(job.publish(m)))
        for job, m in zip(jobs, messages, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(t.inserted for t in totals) == [0, count]
    assert len(rows(url, "SELECT 1 FROM fairlead_tasks")) == count


def test_at_most_max_connections_processes_stage_in_one_database(postgres_url: str) -> None:
    app = App(postgres_url)
    app.migrate()
    app.close()
    job = opened(postgres_url, max_connections="2")
    at_once: list[int] = []
    lock, running = threading.Lock(), [0]

    def batches(part: int) -> Iterator[pa.RecordBatch]:
        with lock:
            running[0] += 1
            at_once.append(running[0])
        for piece in range(10):
            yield numbers(100 * part + 10 * piece, 100 * part + 10 * piece + 10)
        with lock:
            running[0] -= 1

    messages: list[Any] = [None] * 8
    threads = [
        threading.Thread(
            target=lambda part=part: messages.__setitem__(part, job.stage(batches(part), part))
        )
        for part in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(at_once) == 2
    job.publish(messages)
    assert numbers_in(postgres_url) == list(range(800))


# on a cluster -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_on_a_cluster_with_speculation_an_executor_killed_while_it_stages_doubles_nothing(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    app = App(url)
    app.migrate()
    app.close()
    program = Path(__file__).with_name("bulk_cluster.py")
    ran = subprocess.run(
        [sys.executable, str(program), url, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "inserted=1000, duplicate=0" in ran.stdout
    assert (tmp_path / "killed").exists(), "an executor must have been killed"
    for part in (0, 1):
        assert len(list(tmp_path.glob(f"staged-{part}-*"))) > 1, (
            "each part must have been staged twice"
        )
    assert sorted(numbers_in(url)) == list(range(1000))
    assert len(rows(url, "SELECT DISTINCT id FROM fairlead_tasks")) == 1000
