"""Reconciliation: the store may clean only rows that the lake has unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import SYSTEM_CLOCK
from fairlead.connect import task_store
from fairlead.core.ids import id_text
from fairlead.model.history import START, Position
from fairlead.pipeline import ledger
from fairlead.pipeline.errors import BrokenLake, CheckFailed
from fairlead.pipeline.export import Exporter
from fairlead.pipeline.models import ATTEMPTS
from fairlead.pipeline.reconcile import reconcile
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.filling import add, attempt, connected, reader_of
from tests.pipeline.warehouses import lake_in


@pytest.fixture
def history(store_url: str, history: SqlHistory) -> SqlHistory:
    """Return a history of twenty attempts, in a store of each kind in turn. Every third attempt never
    ran; attempts 7 and 8 ended at the same time."""
    add(store_url, *range(20))
    with connected(store_url) as connection:
        started_at, finished_at = attempt(7)[17:19]
        connection.execute(
            f"UPDATE fairlead_attempts SET started_at = {started_at}, finished_at = {finished_at} "
            f"WHERE task_id = '{id_text(8)}'"
        )
    return history


@pytest.fixture
def lake(tmp_path: Path, history: SqlHistory) -> Warehouse:
    """Return a lake with the exported attempts of `history`."""
    lake = lake_in(tmp_path / "lake")
    Exporter(history, lake, SYSTEM_CLOCK, rows=6).round()
    return lake


def rewrite(lake: Warehouse, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace the rows of every partition by the result of `change`."""
    table = lake.table(ATTEMPTS)
    for part in sorted({file.part for file in table.files()}):
        seen = table.state()
        assert table.replace([part], table.write(change(table.load([part])), "changed", seen), seen)


def is_of(rows: pa.Table, n: int) -> pa.ChunkedArray:
    return pc.equal(rows["task_id"], id_text(n))


def positions(history: SqlHistory) -> list[Position]:
    return [
        Position(*row[:2])
        for row in history.database.read_now(history.attempts(START, Position(2**62, 2**62), 1000))
    ]


@pytest.mark.parametrize("piece", [1, 3, 7, 20, 1000])
def test_a_lake_that_agrees_lets_the_store_clean(
    history: SqlHistory, lake: Warehouse, piece: int
) -> None:
    assert reader_of(history, lake).checked is None
    done = reconcile(history, lake, SYSTEM_CLOCK, piece=piece)
    ran = [n for n in range(20) if n % 3]
    assert (done.rows, done.busy_us, done.more) == (20, len(ran), False), (
        "each of these runs took one microsecond; attempts that never ran took no time"
    )
    assert reader_of(history, lake).checked == positions(history)[-1]
    assert reader_of(history, lake).checked_at is not None


def test_a_second_comparison_reads_only_new_rows(
    store_url: str, history: SqlHistory, lake: Warehouse
) -> None:
    reconcile(history, lake, SYSTEM_CLOCK)
    with connected(store_url) as connection:
        connection.execute(
            "DELETE FROM fairlead_attempts"
        )  # allowed, because the rows were compared
    add(store_url, 20, 21)
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == 0, "the new rows are not exported yet"
    Exporter(history, lake, SYSTEM_CLOCK).round()
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == 2
    before = reader_of(history, lake).checked_at
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == 0
    assert (reader_of(history, lake).checked_at or 0) > (before or 0), (
        "a comparison without new rows is recorded too"
    )


def test_a_comparison_can_stop_after_some_pieces_and_continue_there(
    history: SqlHistory, lake: Warehouse
) -> None:
    first = reconcile(history, lake, SYSTEM_CLOCK, piece=8, pieces=1)
    assert (first.rows, first.more) == (8, True)
    assert reader_of(history, lake).checked == positions(history)[7]
    assert [reconcile(history, lake, SYSTEM_CLOCK, piece=8, pieces=1).rows for _ in range(3)] == [
        8,
        4,
        0,
    ]


def test_a_lake_whose_files_were_merged_still_agrees(history: SqlHistory, lake: Warehouse) -> None:
    rewrite(lake, lambda rows: rows)
    assert reconcile(history, lake, SYSTEM_CLOCK, piece=7).rows == 20


def test_an_attempt_in_the_ledger_counts_once(history: SqlHistory, lake: Warehouse) -> None:
    rows = lake.table(ATTEMPTS).load()
    for _ in range(2):  # a crash between the ledger and the removal, twice
        ledger.add(lake, rows.filter(is_of(rows, 7)), "erase")
    assert reconcile(history, lake, SYSTEM_CLOCK, piece=3, pieces=1).rows == 3
    rewrite(lake, without)
    assert reconcile(history, lake, SYSTEM_CLOCK, piece=7).rows == 17
    assert lake.table(ledger.LEDGER).load().num_rows == 0


def twice(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.filter(is_of(rows, 7))])


def without(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.invert(is_of(rows, 7)))


def another_instead(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([without(rows), rows.filter(is_of(rows, 8))])


def with_changed(column: str, by: int) -> Callable[[pa.Table], pa.Table]:
    def change(rows: pa.Table) -> pa.Table:
        plain = rows[column].cast(pa.int64())
        changed = pc.if_else(is_of(rows, 7), pc.add(plain, by), plain).cast(rows[column].type)
        return rows.set_column(
            rows.schema.get_field_index(column), rows.schema.field(column), changed
        )

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(without, "rows 20 in the store and 19 in the lake", id="lost"),
        pytest.param(twice, "rows 20 in the store and 21 in the lake", id="doubled"),
        pytest.param(another_instead, "fingerprint", id="another instead"),
        pytest.param(with_changed("finished_at", 1), "busy_us", id="another end"),
        pytest.param(with_changed("started_at", -1), "busy_us", id="another beginning"),
        pytest.param(with_changed("version", 1), "fingerprint", id="another version"),
    ],
)
def test_a_lake_that_differs_prevents_cleaning_and_shows_the_difference(
    history: SqlHistory, lake: Warehouse, change: Callable[[pa.Table], pa.Table], expected: str
) -> None:
    rewrite(lake, change)
    with pytest.raises(CheckFailed, match=expected):
        reconcile(history, lake, SYSTEM_CLOCK)
    assert reader_of(history, lake).checked is None


def test_each_differing_piece_is_named_and_no_piece_is_released_for_cleaning(
    history: SqlHistory, lake: Warehouse
) -> None:
    rewrite(lake, without)
    rewrite(lake, lambda rows: rows.filter(pc.invert(is_of(rows, 18))))
    with pytest.raises(CheckFailed) as caught:
        reconcile(history, lake, SYSTEM_CLOCK, piece=5)
    at = positions(history)
    assert f"{at[4]} to {at[9]}: rows 5 in the store and 4 in the lake" in str(caught.value)
    assert f"{at[14]} to {at[19]}: rows 5 in the store and 4 in the lake" in str(caught.value)
    assert f"{START} to" not in str(caught.value)
    assert reader_of(history, lake).checked is None


def test_a_row_that_only_the_lake_has_fails_the_comparison(
    store_url: str, history: SqlHistory, lake: Warehouse
) -> None:
    with connected(store_url) as connection:
        connection.execute(f"DELETE FROM fairlead_attempts WHERE task_id = '{id_text(19)}'")
    with pytest.raises(CheckFailed, match="rows 19 in the store and 20 in the lake"):
        reconcile(history, lake, SYSTEM_CLOCK)


def test_the_error_about_a_truncated_file_of_the_lake_names_the_file(
    history: SqlHistory, lake: Warehouse
) -> None:
    path = Path(lake.table(ATTEMPTS).files()[1].path.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(BrokenLake, match=str(path)):
        reconcile(history, lake, SYSTEM_CLOCK)
    assert reader_of(history, lake).checked is None


def test_an_empty_lake_agrees_with_an_empty_store(
    store_url: str, tmp_path: Path, history: SqlHistory
) -> None:
    assert reconcile(history, lake_in(tmp_path / "empty"), SYSTEM_CLOCK).rows == 0


async def test_the_cleaner_deletes_compared_attempts_only(
    store_url: str, history: SqlHistory, lake: Warehouse
) -> None:
    store = task_store(store_url)

    async def clean() -> int:
        while await store.clean(2**62, 1000):
            pass
        return len(positions(history))

    assert await clean() == 20
    reconcile(history, lake, SYSTEM_CLOCK, piece=8, pieces=1)
    assert await clean() == 12
    rewrite(lake, lambda rows: rows.filter(pc.invert(is_of(rows, 18))))
    with pytest.raises(CheckFailed):
        reconcile(history, lake, SYSTEM_CLOCK)
    assert await clean() == 12
    await store.database.close_async()
