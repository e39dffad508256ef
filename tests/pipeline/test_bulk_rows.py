"""Rows become tasks with the values of single submits, and rows that no single submit would take are
named."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import ConfigurationError
from fairlead.model import NewTask
from fairlead.pipeline.bulk import rows
from fairlead.pipeline.bulk.rows import RowEncoder, check_columns
from fairlead.pipeline.errors import RefusedRows
from tests.pipeline.bulk import options_of

URL = "sqlite:///tasks.db"
US = pa.timestamp("us", "UTC")


def encoded(batch: pa.RecordBatch, **options: Any) -> list[NewTask]:
    """Return the tasks of a batch."""
    pieces = RowEncoder(options_of(URL, **options), 3).pieces([batch])
    return [task for piece in pieces for task in piece]


def payloads(batch: pa.RecordBatch, **options: Any) -> list[Any]:
    return [json.loads(task.payload) for task in encoded(batch, **options)]


def refused(batch: pa.RecordBatch, **options: Any) -> str:
    """Return the error about the rows of a batch."""
    with pytest.raises(RefusedRows) as caught:
        encoded(batch, **options)
    return str(caught.value)


def of_app(**options: Any) -> dict[str, Any]:
    return {"task": "pay", **options}


def test_the_error_names_the_first_bad_rows_with_reason_and_says_how_many_there_are() -> None:
    priorities = [5] * 10 + list(range(10, 17))
    batch = pa.record_batch({"n": list(range(17)), "priority": priorities})
    assert refused(batch) == (
        "bulk submit: nothing was submitted: 7 bad rows among the first 17 of partition 3: "
        + "; ".join(f"row {n}: priority {n}: use a whole number from 0 to 9" for n in range(10, 15))
        + "; and 2 more"
    )


NAN, INFINITY = float("nan"), float("inf")


def map_of(keys: list[Any], values: list[Any], type_: pa.DataType) -> pa.Array:
    """Return an empty map, and one with all keys."""
    return pa.MapArray.from_arrays([0, 0, len(keys)], pa.array(keys, type_), values)


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("n", pa.array([1.0, NAN]), "JSON has no NaN or infinity"),
        ("n", pa.array([None, -INFINITY]), "JSON has no NaN or infinity"),
        ("n", pa.array([[1.0], [NAN]]), "JSON has no NaN or infinity"),
        ("n", pa.array([{"a": {"b": 1.0}}, {"a": {"b": INFINITY}}]), "JSON has no NaN"),
        ("day", pa.array([0, 3_000_000], pa.date32()), "date value"),
        ("n", map_of(["a", "a"], [1, 2], pa.string()), "a"),
        ("run_at", pa.array([0, 9_151_488_000 * 10**9], US), ""),
        ("run_at", pa.array([0, 10**13], pa.timestamp("s", "UTC")), ""),
        ("run_at", pa.array([None, datetime(2026, 1, 1)], pa.timestamp("us")), "naive datetime"),
        ("run_at", pa.array([None, "tomorrow"]), "run_at 'tomorrow': "),
        ("weight", pa.array([1, (1 << 53) + 1]), "weight 9007199254740993: use a number from"),
        ("weight", pa.array([Decimal(1), Decimal("1e30")]), "weight 1e+30: use a number from"),
        ("weight", pa.array([1.0, NAN]), "weight nan: use a number from"),
        ("priority", pa.array([1, (1 << 64) - 1], pa.uint64()), "priority 18446744073709551615"),
        ("priority", pa.array([None, "3"]), "priority '3': use a whole number"),
        ("fairness_key", pa.array(["", "a\0"]), "fairness_key 'a\\x00'"),
        ("ordering_key", pa.array([None, ""]), "ordering_key"),
        ("unique_key", pa.array([None, "x" * 1025]), "unique_key"),
        ("context", map_of(["a"], [None], pa.string()), "context['a'] None: use a string"),
        ("ordering_key", pa.array([b"a", b"\xff"]).view(pa.string()), "utf-8"),
    ],
)
def test_a_row_that_no_single_submit_would_take_is_refused_by_name(
    column: str, values: pa.Array, reason: str
) -> None:
    found = refused(pa.record_batch({column: values}))
    assert "1 bad rows among the first 2 of partition 3: row 1: " in found, found
    assert reason in found


def test_option_columns_set_the_options_and_all_others_are_arguments() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    batch = pa.record_batch(
        {
            "partner": ["acme", None],
            "fairness_key": ["acme", None],
            "weight": pa.array([Decimal("2.5"), None]),
            "priority": [3, None],
            "ordering_key": ["k", None],
            "unique_key": ["u", None],
            "unique_for": ["P1D", None],
            "run_at": pa.array([at, None], pa.timestamp("us", "Europe/Helsinki")),
            "context": pa.array([[("trace", "é")], []], pa.map_(pa.string(), pa.string())),
        }
    )
    first, second = encoded(batch)
    assert json.loads(first.payload) == {"partner": "acme"}
    assert (first.fairness_key, first.weight, first.priority) == ("acme", 2.5, 3)
    assert (first.ordering_key, first.unique_key, first.run_at) == ("k", "u", 1767323045000006)
    assert (first.unique_until or 0) - first.submitted_at == 86_400_000_000
    assert first.context == json.dumps({"trace": "é"})
    assert json.loads(second.payload) == {"partner": None}
    assert (second.fairness_key, second.weight, second.priority) == ("", 1.0, 5)
    assert second.run_at == second.submitted_at and second.context is None


def test_the_app_gives_queue_and_kept_results_and_checks_arguments_by_their_annotations() -> None:
    batch = pa.record_batch({"account": ["00123"], "n": [1], "priority": ["high"], "weight": [2]})
    (task,) = encoded(batch, **of_app())
    assert (task.queue, task.name, task.keep_result) == ("orders", "pay", True)
    assert json.loads(task.payload) == {"account": "00123", "n": 1, "priority": "high"}
    assert (task.priority, task.weight) == (5, 2), "priority is an argument of this handler"
    wrong = pa.record_batch({"account": ["a", "b"], "n": pa.array(["1", None])})
    found = refused(wrong, **of_app())
    assert "2 bad rows" in found and "task 'pay': Expected `int`, got `str`" in found


def test_texts_are_converted_by_the_annotations_of_the_app() -> None:
    batch = pa.record_batch(
        {
            "account": ["00123", "1e5"],
            "n": ["7", "-8"],
            "amount": ["1.20", None],
            "when": ["2026-01-31T12:00:00Z", None],
            "weight": ["2.5", None],
            "run_at": ["2026-01-31T12:00:00+02:00", None],
        }
    )
    assert payloads(batch, **of_app(values="text")) == [
        {"account": "00123", "n": 7, "amount": "1.20", "when": "2026-01-31T12:00:00Z"},
        {"account": "1e5", "n": -8, "amount": None, "when": None},
    ]
    tasks = encoded(batch, **of_app(values="text"))
    assert [task.weight for task in tasks] == [2.5, 1.0] and tasks[0].run_at == 1769853600000000


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("n", "7.5"),
        ("n", ""),
        ("n", None),
        ("amount", "a lot"),
        ("weight", "nan"),
        ("weight", "heavy"),
        ("run_at", "2026-01-31T12:00:00"),
        ("account", "gr\ufffdn"),
        ("account", None),
    ],
)
def test_a_text_that_does_not_fit_is_refused(column: str, text: str | None) -> None:
    columns = {"account": ["a"], "n": ["1"], column: pa.array([text], pa.string())}
    assert "1 bad rows" in refused(pa.record_batch(columns), **of_app(values="text"))


def test_a_line_of_json_keeps_its_values_and_leaves_out_what_it_leaves_out() -> None:
    lines = [
        '{"account": "00123", "n": 1, "weight": 2, "run_at": "2026-01-31T12:00:00Z"}',
        "  ",
        '{"account": "a", "n": 2, "flags": [true, false], "context": {"trace": "a"}}',
    ]
    batch = pa.record_batch({"value": lines})
    first, second = encoded(batch, **of_app(values="json"))
    assert first.payload == b'{"account":"00123","n":1}'
    assert (first.weight, first.run_at) == (2, 1769860800000000)
    assert second.payload == b'{"account":"a","n":2,"flags":[true,false]}'
    assert second.context == '{"trace": "a"}'
    folder = pa.record_batch({"value": ['{"n": 1}'], "account": ["from a folder"]})
    assert payloads(folder, **of_app(values="json")) == [{"account": "from a folder", "n": 1}]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[1]", "not a JSON object on one line: Expected `object`, got `array`"),
        ('{"n": NaN}', "not a JSON object on one line: JSON is malformed"),
        ('{"account": "a", "n": "1"}', "Expected `int`, got `str`"),
        ('{"account": "a"}', "missing required field `n`"),
        ('{"account": "a", "n": 1, "konto": 1}', "unknown field `konto`"),
        ('{"account": "a", "n": 1, "weight": 1e300}', "weight 1e+300: use a number from"),
        ('{"account": "a", "n": 1, "run_at": "2026-01-31"}', "run_at"),
        ('{"account": "a", "n": 1, "run_at": "0001-01-01T00:00:00+14:00"}', "the years 1 to 9999"),
        ('{"account": "a", "n": 1, "context": {"a": 1}}', "context['a'] 1: use a string"),
    ],
)
def test_a_line_of_json_that_cannot_be_a_task_is_refused(line: str, reason: str) -> None:
    good = '{"account": "a", "n": 1}'
    found = refused(pa.record_batch({"value": [good, line]}), **of_app(values="json"))
    assert "1 bad rows" in found and reason in found, found


@given(st.lists(st.integers() | st.floats() | st.none(), min_size=1, max_size=6))
def test_any_value_is_encoded_exactly_or_refused(values: list[Any]) -> None:
    try:
        column = pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return  # Spark cannot hold such a column either
    for value in column:
        try:
            (found,) = payloads(pa.record_batch({"n": [value]}, pa.schema({"n": column.type})))
        except RefusedRows:
            assert value.as_py() - value.as_py() != 0  # NaN or infinity
        else:
            assert found == {"n": value.as_py()}


def test_pieces_are_small_in_rows_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_TASKS", 10)
    monkeypatch.setattr(rows, "MOST_BYTES", 1000)
    for text, sizes in (
        ("x", [10, 10, 5]),
        ("x" * 390, [2] * 12 + [1]),
        (os.urandom(1500).hex(), [1] * 25),
    ):
        batch = pa.record_batch({"text": [f"{text}{n}" for n in range(25)]})
        pieces = RowEncoder(options_of(URL), 0).pieces([batch.slice(0, 0), batch])
        assert [len(piece) for piece in pieces] == sizes


# columns and options ------------------------------------------------------------------------------


def test_columns_that_no_row_can_fit_are_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigurationError, match="columns: n is there twice"):
        check_columns(["n", "n"], options_of(URL))
    with pytest.raises(ConfigurationError, match="unknown: colour; known: account, amount, flags"):
        check_columns(["account", "colour", "weight"], options_of(URL, **of_app()))
    check_columns(["value", "account"], options_of(URL, **of_app(values="json")))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"colour": "red"}, "unknown field `colour`; options: app, task, submission_id"),
        ({"submission_id": None}, "missing required field `submission_id`"),
        ({"submission_id": "x" * 1025}, "submission_id"),
        ({"submission_id": "a\0"}, "submission_id"),
        ({"task": ""}, "task name is empty"),
        ({"values": "xml"}, "Invalid enum value 'xml'"),
        ({"app": None}, "missing required field `app`"),
    ],
)
def test_a_wrong_option_is_one_clear_error(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        options_of(**{"url": URL, **given})


def test_a_task_that_the_app_does_not_declare_or_that_is_ordered_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="no task named 'refund' in .*; it has in_order, keep, pay"
    ):
        options_of(URL, **of_app(task="refund")).handler()
    with pytest.raises(ConfigurationError, match="of the ordered queue 'ordered'.*use submit_many"):
        options_of(URL, **of_app(task="in_order")).handler()


def test_a_relative_path_of_a_sqlite_file_is_made_absolute_for_every_process(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert options_of("sqlite:///tasks 1.db?synchronous=NORMAL").url == (
        f"sqlite:///{tmp_path}/tasks%201.db?synchronous=NORMAL"
    )
    assert "password" not in repr(options_of("postgresql://me:password@host/shop"))
