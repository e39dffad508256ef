"""Real processes of a bulk submit die at every point, and no task is lost or doubled."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from fairlead.pipeline.bulk import rows as rows_module
from fairlead.pipeline.bulk.stage import BulkStore, StagedPart, StageLost, SubmissionTotals
from tests.pipeline.bulk import left_in_stage, numbers, numbers_in, publish, rows, stage, submit

ALL = list(range(200))
PARTS = [[numbers(0, 60), numbers(60, 100)], [numbers(100, 200)]]


@pytest.fixture
def url(store_url: str, store: Any) -> str:
    """Return the URL of a fresh, migrated store of each kind in turn."""
    store.database.close()
    return store_url


def staged(url: str) -> list[StagedPart]:
    """Stage all parts."""
    return [stage(url, part, number) for number, part in enumerate(PARTS)]


def dies(work: Any, *arguments: Any) -> None:
    """Run `work` in its own process, which must kill itself."""
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def publish_at_once(url: str, *runs: tuple[str, list[StagedPart]]) -> list[SubmissionTotals]:
    """Publish these parts of submissions, each in a thread of its own."""
    with ThreadPoolExecutor(len(runs)) as threads:
        return list(threads.map(lambda run: publish(url, run[1], run[0]), runs))


@pytest.mark.parametrize("when", ["between two batches", "after the last"])
def test_an_executor_that_dies_leaves_an_unpublished_part_and_its_next_attempt_counts(
    url: str, when: str
) -> None:
    def dying() -> None:
        def batches() -> Iterator[pa.RecordBatch]:
            yield from PARTS[0]
            if when == "between two batches":
                die()

        stage(url, batches(), 0)  # type: ignore[arg-type]
        die()

    dies(dying)
    assert left_in_stage(url) > 0
    publish(url, staged(url))
    assert numbers_in(url) == ALL


@pytest.mark.parametrize("winner", [0, 1])
def test_of_two_finished_attempts_only_the_one_named_by_the_driver_counts(
    url: str, winner: int
) -> None:
    attempts = [stage(url, PARTS[0], 0) for _ in range(2)]
    publish(url, [stage(url, PARTS[1], 1), attempts[winner]])
    assert numbers_in(url) == ALL, "in the order of the parts, not of the messages"


def test_a_driver_that_dies_before_it_publishes_is_followed_by_a_run_that_ignores_its_parts(
    url: str,
) -> None:
    def dying() -> None:
        staged(url)
        die()

    dies(dying)
    assert left_in_stage(url) > 0 and numbers_in(url) == []
    assert submit(url, PARTS).inserted == 200
    assert numbers_in(url) == ALL


@pytest.mark.parametrize("pieces", [0, 1, 3])
def test_a_driver_that_dies_in_the_publishing_transaction_has_published_nothing(
    url: str, pieces: int
) -> None:
    def dying() -> None:
        parts = staged(url)
        piece, read = BulkStore._piece, iter(range(pieces + 1))

        def piece_or_death(self: BulkStore, part: StagedPart, number: int) -> Any:
            if next(read, None) is None:
                die()
            return (yield from piece(self, part, number))

        BulkStore._piece = piece_or_death  # type: ignore[method-assign]
        publish(url, parts)
        die()

    dies(dying)
    assert numbers_in(url) == ([] if pieces < 3 else ALL)
    assert submit(url, PARTS).inserted == 200
    assert numbers_in(url) == ALL


def test_a_driver_that_dies_after_the_commit_is_followed_by_a_run_that_changes_nothing(
    url: str,
) -> None:
    def dying() -> None:
        submit(url, PARTS)
        die()

    dies(dying)
    assert numbers_in(url) == ALL
    assert submit(url, PARTS) == SubmissionTotals("march", inserted=200, is_repeat=True)
    assert numbers_in(url) == ALL and left_in_stage(url) == 0


def test_of_two_runs_of_one_submission_that_publish_at_once_one_publishes(url: str) -> None:
    totals = publish_at_once(url, ("march", staged(url)), ("march", staged(url)))
    assert sorted((each.inserted, each.is_repeat) for each in totals) == [(200, False), (200, True)]
    assert numbers_in(url) == ALL and left_in_stage(url) == 0


def test_lost_pieces_raise_an_error_and_nothing_is_published(url: str) -> None:
    first, second = staged(url)
    with pytest.raises(StageLost):
        publish(url, [msgspec.structs.replace(first, pieces=first.pieces + 1), second])
    assert numbers_in(url) == []
    publish(url, [first, second])
    assert numbers_in(url) == ALL


def test_submissions_that_claim_the_same_keys_in_opposite_orders_do_not_dead_lock(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "MOST_TASKS", 50)
    count = 2000
    keys = [f"key-{n:05}" for n in range(count)]
    up, down = (
        [stage(url, [numbers(0, count, unique_key=pa.array(given))], 0)]
        for given in (keys, keys[::-1])
    )
    totals = publish_at_once(url, ("up", up), ("down", down))
    assert sorted(each.inserted for each in totals) == [0, count]
    assert len(rows(url, "SELECT 1 FROM fairlead_tasks")) == count
