"""Rows of the user become staged rows, in batches, with the same bounds, errors, ids and partitions as
single submits."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.payload import unpack
from fairlead.core.sharding.partitions import partition_of
from fairlead.declare.options import Options
from fairlead.errors import ConfigurationError, InvalidTask
from fairlead.pipeline.bulk import columns, rows
from fairlead.pipeline.bulk.binary_rows import binary_rows
from fairlead.pipeline.bulk.checks import Reject
from fairlead.pipeline.bulk.ids import IdSpace
from fairlead.pipeline.bulk.options import BulkOptions
from fairlead.pipeline.bulk.rows import RowEncoder

SPACE = IdSpace(1_780_000_000_000, 3, 12345)
URL = "sqlite:///tasks.db"


def options(**given: str | None) -> BulkOptions:
    values = {"url": URL, "queue": "orders", "task": "pay", "submission_id": "march", **given}
    return BulkOptions.read({name: value for name, value in values.items() if value is not None})


def encode(batch: pa.RecordBatch, **given: str | None) -> tuple[list[dict[str, Any]], list[Reject]]:
    read = options(**given)
    columns.check(batch.schema, read)
    pieces = list(RowEncoder(read, {"known": 7}, SPACE).encode(batch))
    return [row for piece, _ in pieces for row in piece.to_pylist()], [
        reject for _, found in pieces for reject in found
    ]


def accepts(**given: Any) -> bool:
    try:
        Options().changed(given)
    except InvalidTask:
        return False
    return True


# arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "given", "payload"),
    [
        ({"payload": ['{ "n" : 1.50, "who": "\\u00e9" }']}, {}, b'{"n":1.50,"who":"\\u00e9"}'),
        (
            {"args": [{"n": 1, "deep": {"list": [1, None]}}]},
            {},
            b'{"n":1,"deep":{"list":[1,null]}}',
        ),
        ({"args": pa.array([[("n", 1)]], pa.map_(pa.string(), pa.int64()))}, {}, b'{"n":1}'),
        (
            {"n": [1], "who": ["é\n"], "x": [2.0]},
            {"args_columns": "n, who,x"},
            '{"n":1,"who":"é\\n","x":2.0}'.encode(),
        ),
        (
            {"at": [datetime(2026, 1, 2, tzinfo=UTC)]},
            {"args_columns": "at"},
            b'{"at":"2026-01-02T00:00:00Z"}',
        ),
        ({"price": [Decimal("1.20")]}, {"args_columns": "price"}, b'{"price":"1.20"}'),
        (
            {"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))},
            {"args_columns": "m"},
            b'{"m":{"a":1}}',
        ),
        ({"priority": pa.array([1])}, {}, b"{}"),
        ({"args": pa.array([{}], pa.struct([]))}, {}, b"{}"),
        (
            {"priority": pa.array([77]), "queue": ["ours"]},
            {"args_columns": "priority"},
            b'{"priority":77}',
        ),
    ],
)
def test_arguments_become_the_json_that_a_submit_would_write(
    batch: dict[str, Any], given: dict[str, str], payload: bytes
) -> None:
    encoded, rejects = encode(pa.record_batch(batch), **given)
    assert [row["payload"] for row in encoded] == [payload] and not rejects


def test_a_long_payload_is_compressed_as_a_submit_compresses_it() -> None:
    encoded, _ = encode(pa.record_batch({"text": ["short", "long" * 1000]}), args_columns="text")
    assert [row["payload_format"] for row in encoded] == ["json", "json+zlib"]
    assert json.loads(unpack(encoded[1]["payload"], "json+zlib")) == {"text": "long" * 1000}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (None, "payload None: give a JSON object"),
        ("", "payload: Input data was truncated"),
        ("[1]", "payload: not a JSON object"),
        ('{"a":NaN}', "payload: JSON is malformed: invalid character (byte 5)"),
        ('{"a":1} {}', "payload: JSON is malformed: trailing characters (byte 9)"),
        ('{"a":' + "[" * 100_000, "payload: maximum recursion depth exceeded"),
        (
            '{"a":"' + "x" * 100 + '"}',
            "task 'pay': its payload has 108 bytes, more than 100; store large data elsewhere and submit a reference, or raise "
            "payload_limit",
        ),
    ],
)
def test_a_payload_that_is_no_json_object_or_too_long_is_refused(
    payload: str | None, reason: str
) -> None:
    batch = pa.record_batch({"payload": pa.array(["{}", payload], pa.string())})
    encoded, rejects = encode(batch, payload_limit="100")
    assert len(encoded) == 1 and [(r.ordinal, r.column) for r in rejects] == [(1, "payload")]
    assert rejects[0].reason.startswith(reason)


def test_a_null_in_place_of_arguments_is_refused() -> None:
    args = pa.array([{"n": 1}, None], pa.struct([("n", pa.int64())]))
    encoded, rejects = encode(pa.record_batch({"args": args}))
    assert [row["payload"] for row in encoded] == [b'{"n":1}']
    assert rejects == [Reject(1, "args", "args None: give a struct or a map", "None")]


def test_text_that_is_no_unicode_is_refused_in_every_column() -> None:
    bad = pa.array([b"fine", b"\xff\xfe"], pa.binary()).view(pa.string())
    for column in (
        "fairness_key",
        "ordering_key",
        "unique_key",
        "name",
        "queue",
        "payload",
        "text",
    ):
        given = {"args_columns": "text"} if column == "text" else {}
        batch = pa.record_batch(
            {
                column: bad
                if column != "payload"
                else pa.array([b"{}", b'{"a":"\xff"}']).view(pa.string())
            }
        )
        encoded, rejects = encode(batch, **given)
        assert len(encoded) == 1 and [(r.ordinal, r.column) for r in rejects] == [(1, column)], (
            column
        )


# bounds -------------------------------------------------------------------------------------------

texts = st.text(
    st.characters(exclude_categories=["Cs"]) | st.just("\0"), max_size=3
) | st.sampled_from(["x" * 1024, "x" * 1025, "é" * 512, "é" * 513])


@given(
    st.lists(texts | st.none(), min_size=1, max_size=5),
    st.sampled_from(["fairness_key", "ordering_key", "unique_key"]),
)
def test_a_key_is_refused_exactly_when_a_submit_refuses_it_and_with_the_same_error(
    keys: list[str | None], column: str
) -> None:
    encoded, rejects = encode(pa.record_batch({column: pa.array(keys, pa.string())}))
    fine = [key for key in keys if key is None or accepts(**{column: key})]
    assert [row[column] for row in encoded] == [
        ("" if key is None and column == "fairness_key" else key) for key in fine
    ]
    assert len(rejects) == len(keys) - len(fine)
    for reject in rejects:
        with pytest.raises(InvalidTask) as caught:
            Options().changed({column: keys[reject.ordinal]})
        assert reject.reason == str(caught.value).replace("\0", "\\x00")


@given(st.lists(st.floats() | st.sampled_from([0.001, 1000.0]) | st.none(), min_size=1, max_size=5))
def test_a_weight_is_refused_exactly_when_a_submit_refuses_it(weights: list[float | None]) -> None:
    encoded, rejects = encode(pa.record_batch({"weight": pa.array(weights, pa.float64())}))
    assert [row["weight"] for row in encoded] == [
        1.0 if weight is None else weight
        for weight in weights
        if weight is None or accepts(weight=weight)
    ]
    assert len(encoded) + len(rejects) == len(weights)


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8()])
def test_a_priority_may_have_any_integer_type_and_is_refused_out_of_bounds(
    kind: pa.DataType,
) -> None:
    encoded, rejects = encode(pa.record_batch({"priority": pa.array([0, 9, 10, None, 100], kind)}))
    assert [row["priority"] for row in encoded] == [0, 9, 5]
    assert [str(r) for r in rejects] == [
        "row 2: priority 10: use a whole number from 0 (first) to 9 (last) (column priority: 10)",
        "row 4: priority 100: use a whole number from 0 (first) to 9 (last) (column priority: 100)",
    ]


def test_names_of_tasks_and_queues_come_from_columns_or_options_and_are_checked() -> None:
    names = ["pay", None, "", "x" * 201, "a\0b"]
    batch = pa.record_batch({"name": names, "queue": ["known", "new", "new", "new", None]})
    encoded, rejects = encode(batch, task=None)
    assert [(row["name"], row["queue"]) for row in encoded] == [("pay", "known")]
    assert [r.ordinal for r in rejects] == [1, 2, 3, 4]
    assert rejects[0].reason == "task name None: use a string"
    encoded, rejects = encode(
        pa.record_batch({"name": [None, "own"], "queue": pa.array([None, "own"])})
    )
    assert [(row["name"], row["queue"]) for row in encoded] == [
        ("pay", "orders"),
        ("own", "own"),
    ] and not rejects
    with pytest.raises(ConfigurationError, match="queue name is empty"):
        options(queue="")


def test_the_context_is_stored_as_a_submit_stores_it() -> None:
    contexts = [[("trace", "é")], [], None, [("a", None)]]
    batch = pa.record_batch({"context": pa.array(contexts, pa.map_(pa.string(), pa.string()))})
    encoded, rejects = encode(batch)
    assert [row["context"] for row in encoded] == [json.dumps({"trace": "é"}), None, None]
    assert [(r.ordinal, r.reason) for r in rejects] == [(3, "context['a'] None: use a string")]


def test_a_run_at_is_the_instant_in_microseconds_whatever_its_time_zone() -> None:
    instants = pa.array(
        [datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), None], pa.timestamp("us", "Europe/Helsinki")
    )
    encoded, _ = encode(pa.record_batch({"run_at": instants}))
    assert [row["run_at"] for row in encoded] == [1767323045000006, None]


@pytest.mark.parametrize("zone", ["America/New_York", "Pacific/Kiritimati"])
def test_a_run_at_may_have_no_date_in_the_time_zone_of_its_column(zone: str) -> None:
    bounds = [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]
    instants = pa.array(bounds, pa.timestamp("us", "UTC")).cast(pa.timestamp("us", zone))
    encoded, rejects = encode(pa.record_batch({"run_at": instants}))
    assert not rejects and len(encoded) == 2


def test_without_a_submission_id_a_row_without_unique_key_is_refused() -> None:
    batch = pa.record_batch({"unique_key": ["a", None]})
    encoded, rejects = encode(batch, submission_id=None)
    assert len(encoded) == 1
    assert rejects[0].reason == "unique_key None: without option submission_id every row needs one"


def test_a_row_with_many_faults_is_refused_once_and_the_error_shows_the_start_of_its_value() -> (
    None
):
    batch = pa.record_batch(
        {"fairness_key": ["x" * 5000 + "\0"], "weight": [0.0], "payload": ["nonsense" * 100]}
    )
    _, rejects = encode(batch)
    assert len(rejects) == 1 and len(rejects[0].value) <= 100 and len(rejects[0].reason) <= 500


# columns ------------------------------------------------------------------------------------------


def test_an_error_names_all_wrong_columns_at_once() -> None:
    schema = pa.schema(
        {
            "payload": pa.int64(),
            "args": pa.string(),
            "priority": pa.string(),
            "run_at": pa.timestamp("us"),
            "weight": pa.bool_(),
            "colour": pa.string(),
            "context": pa.map_(pa.string(), pa.int64()),
        }
    )
    with pytest.raises(InvalidTask) as caught:
        columns.check(schema, options(task=None, submission_id=None, args_columns="missing"))
    for part in (
        "column missing is missing (args_columns names it)",
        "unknown column colour; known: name, queue,",
        "column name is missing: add it, or give option task",
        "arguments are given twice, by payload and by args and by args_columns",
        "without option submission_id every row needs a unique_key",
        "column payload has type int64: use string",
        "column args has type string: use a struct or a map",
        "column priority has type string: use a whole number",
        "column run_at has type timestamp[us]: use timestamp (an instant, not a local time)",
        "column weight has type bool: use a number",
        "column context has type map<string, int64>: use map<string,string>",
    ):
        assert part in str(caught.value)


def test_an_error_names_all_wrong_options_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        BulkOptions.read(
            {
                "colour": "red",
                "partitions": "many",
                "rows_per_chunk": "0",
                "publish": "maybe",
                "on_error": "shrug",
                "max_backlog": "5",
            }
        )
    for part in (
        "unknown option colour",
        "partitions 'many': use a whole number",
        "rows_per_chunk 0: use a whole number from 1",
        "publish 'maybe': use atomic or chunked",
        "on_error 'shrug': use fail or quarantine",
        "option url is missing",
        "max_backlog needs publish chunked",
    ):
        assert part in str(caught.value)
    with pytest.raises(ConfigurationError, match="on_conflict error needs publish atomic"):
        options(on_conflict="error", publish="chunked")
    assert (
        BulkOptions.read(
            {"URL": URL, "Path": "x", "keep_result": "true", "partitions": "8"}
        ).partitions
        == 8
    )


@pytest.mark.parametrize("id", ["", "x" * 1025, "a\0", "\ud800"])
def test_a_submission_id_that_no_store_can_hold_is_refused_with_the_other_options(id: str) -> None:
    with pytest.raises(ConfigurationError, match="submission_id .*; max_backlog needs"):
        options(submission_id=id, max_backlog="5")


def test_a_relative_path_of_a_sqlite_file_is_made_absolute_for_every_process(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert options(url="sqlite:///tasks 1.db?synchronous=NORMAL").url == (
        f"sqlite:///{tmp_path}/tasks%201.db?synchronous=NORMAL"
    )


# ids and partitions -------------------------------------------------------------------------------


@given(
    st.integers(0, 2**14 - 1),
    st.integers(0, 2**26 - 1),
    st.integers(0, 2**34 - 100),
    st.integers(1, 1000),
    st.integers(0, 2**48 - 1),
)
def test_ids_are_ascending_uuid7_and_give_the_same_partition_as_a_submit(
    part: int, salt: int, first: int, partitions: int, millis: int
) -> None:
    import numpy as np

    space = IdSpace(millis, part, salt)
    lows = space.lows(first, 5)
    ids = [uuid.UUID(bytes=id) for id in space.ids(lows).to_pylist()]
    assert all(
        id.version == 7 and id.variant == uuid.RFC_4122 and id.int >> 80 == millis for id in ids
    )
    assert ids == sorted(set(ids))
    keys = pa.array(["a", None, "é", None, "a"])
    found = space.partitions(lows, keys, np.full(5, partitions, np.uint64))
    assert found.tolist() == [
        partition_of(k, id.int, partitions) for k, id in zip(keys.to_pylist(), ids, strict=True)
    ]


def test_ids_of_a_later_part_come_after_all_of_an_earlier_one() -> None:
    last = IdSpace(1, 4, 2**26 - 1).lows(2**34 - 2, 1)
    assert IdSpace(1, 4, 0).high < IdSpace(1, 8, 0).high
    assert IdSpace(1, 5, 0).lows(0, 1)[0] > last[0]
    assert IdSpace(1, 5, 0).lows(2**34 - 1, 1).size == 1  # the last row that a partition may have
    with pytest.raises(ConfigurationError, match="17,179,869,184"):
        IdSpace(1, 5, 0).lows(2**34 - 1, 2)


@pytest.mark.parametrize("partitions", [1, 2, 4, 7, 8])
def test_tasks_without_an_ordering_key_spread_evenly_over_the_partitions(partitions: int) -> None:
    batch = pa.record_batch({"n": pa.array(range(1000))})
    encoded, _ = encode(batch, args_columns="n", partitions=str(partitions))
    counts = [sum(row["partition"] == p for row in encoded) for p in range(partitions)]
    assert max(counts) - min(counts) <= 1


def test_the_greater_of_the_registered_and_the_requested_number_of_partitions_counts() -> None:
    assert options().partitions_of({"orders": 7}, "orders") == 7
    assert options(partitions="3").partitions_of({"orders": 7}, "orders") == 7
    assert options(partitions="9").partitions_of({"orders": 7}, "orders") == 9
    assert options(partitions="2").partitions_of({}, "orders") == 2
    assert options().partitions_of({}, "orders") == 1


def test_a_dataframe_with_more_partitions_than_ids_can_number_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at most 16,384 partitions"):
        IdSpace.of(0, "march", "epoch", 2**14)


def test_a_batch_is_processed_in_pieces_with_continuous_ordinals(monkeypatch) -> None:
    monkeypatch.setattr(rows, "MOST_BYTES", 1000)
    encoded, _ = encode(pa.record_batch({"payload": ['{"text":"' + "x" * 90 + '"}'] * 50}))
    assert [row["ordinal"] for row in encoded] == list(range(50))
    assert len({row["id"] for row in encoded}) == 50


def test_a_batch_without_rows_is_accepted() -> None:
    encoded, rejects = encode(pa.record_batch({"n": pa.array([], pa.int64())}), args_columns="n")
    assert encoded == [] and rejects == []
    piece = next(
        RowEncoder(options(args_columns="n"), {}, SPACE).encode(
            pa.record_batch({"n": pa.array([1])})
        )
    )[0]
    assert binary_rows(piece.slice(0, 0), 1, b"a" * 16) == b""


def test_part_of_a_batch_gives_the_same_binary_rows_as_its_rows_in_the_whole() -> None:
    table = pa.record_batch(
        {"n": pa.array(range(5)), "fairness_key": ["a", None, "é", "d" * 300, ""]}
    )
    batch = next(RowEncoder(options(args_columns="n"), {}, SPACE).encode(table))[0]
    whole = binary_rows(batch, 1, b"a" * 16)
    assert b"".join(binary_rows(batch.slice(row, 1), 1, b"a" * 16) for row in range(5)) == whole


# values that cannot travel ------------------------------------------------------------------------

NAN, INFINITY = float("nan"), float("inf")
US, SECONDS = pa.timestamp("us", "UTC"), pa.timestamp("s", "UTC")


def map_of(keys: list[Any], values: list[Any], type_: pa.DataType) -> pa.Array:
    """Return one map with all keys, and an empty one."""
    return pa.MapArray.from_arrays([0, len(keys), len(keys)], pa.array(keys, type_), values)


@pytest.mark.parametrize(
    ("column", "bad", "reason"),
    [
        ("n", pa.array([1.0, NAN]), "n: JSON has no NaN or infinity"),
        ("n", pa.array([None, -INFINITY]), "n: JSON has no NaN or infinity"),
        ("n", pa.array([[1.0], [NAN]]), "n: JSON has no NaN or infinity"),
        ("n", pa.array([{"a": {"b": 1.0}}, {"a": {"b": INFINITY}}]), "n: JSON has no NaN"),
        ("n", pa.array([0, 3_000_000], pa.date32()), "n: cannot be written as JSON (date value"),
        ("n", pa.array([0, 1 << 62], US), "n: cannot be written as JSON (date value out"),
        ("run_at", pa.array([0, 9_151_488_000 * 10**9], US), "run_at 9151488000000000000 us since"),
        ("run_at", pa.array([0, -(10**17)], US), "run_at -100000000000000000 us since 1970"),
        ("run_at", pa.array([0, 10**13], SECONDS), "run_at 10000000000000 s since 1970: use an"),
        ("weight", pa.array([1, (1 << 53) + 1]), "weight 9007199254740993: use a number from"),
        ("weight", pa.array([1, (1 << 64) - 1], pa.uint64()), "weight 18446744073709551615: use"),
        ("weight", pa.array([Decimal(1), Decimal("1e50")]), "weight Decimal('1"),
        ("weight", pa.array([1.0, NAN]), "weight nan: use a number from"),
        ("priority", pa.array([1, (1 << 64) - 1], pa.uint64()), "priority 18446744073709551615"),
        ("payload", pa.array(["{}", '{"a":1e999}']), "payload: Number out of range"),
        ("payload", pa.array(["{}", '{"a":"\\ud800"}']), "payload: "),
    ],
)
def test_a_row_that_cannot_travel_is_refused_by_name_and_the_others_are_not(
    column: str, bad: pa.Array, reason: str
) -> None:
    given = {"args_columns": "n"} if column == "n" else {}
    encoded, rejects = encode(pa.record_batch({column: bad}), **given)
    assert len(encoded) == 1
    assert [(reject.ordinal, reject.column) for reject in rejects] == [(1, column)]
    assert rejects[0].reason.startswith(reason), rejects[0]


def test_a_map_without_usable_keys_is_refused() -> None:
    twice = map_of(["a", "a"], [1, 2], pa.string())
    nan = map_of(["a"], [NAN], pa.string())
    bad_context = map_of(["a"], pa.array([b"\xff"]).view(pa.string()), pa.string())
    for column, bad in (("n", twice), ("n", nan), ("args", nan), ("context", bad_context)):
        given = {"args_columns": "n"} if column == "n" else {}
        encoded, rejects = encode(pa.record_batch({column: bad}), **given)
        assert len(encoded) == 1
        assert [(reject.ordinal, reject.column) for reject in rejects] == [(0, column)]


def test_a_run_at_of_any_year_that_a_single_submit_takes_is_taken() -> None:
    instants = [datetime(year, 1, 1, tzinfo=UTC) for year in (1, 1900, 9999)]
    encoded, rejects = encode(pa.record_batch({"run_at": pa.array(instants, US)}))
    assert not rejects and all(accepts(run_at=instant) for instant in instants)
    assert [row["run_at"] for row in encoded] == [
        Options().changed({"run_at": instant}).run_at_micros(0) for instant in instants
    ]


def test_columns_and_fields_that_are_there_twice_are_an_error() -> None:
    field = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    with pytest.raises(InvalidTask, match="column n has the field a twice"):
        encode(pa.record_batch({"n": field}), args_columns="n")
    with pytest.raises(InvalidTask, match="column n is there twice"):
        encode(pa.RecordBatch.from_arrays([pa.array([1])] * 2, ["n", "n"]), args_columns="n")
    with pytest.raises(ConfigurationError, match="args_columns names n twice"):
        options(args_columns="n,n")
    with pytest.raises(InvalidTask, match="types names column n, which has type int64: leave it"):
        encode(pa.record_batch({"n": [1]}), args_columns="n", types="n=int")


@given(st.lists(st.integers() | st.floats() | st.decimals() | st.none(), min_size=1, max_size=6))
def test_any_value_is_encoded_exactly_or_refused(values: list[Any]) -> None:
    try:
        column = pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return  # Spark cannot hold such a column either
    encoded, rejects = encode(pa.record_batch({"n": column}), args_columns="n")
    refused = {reject.ordinal for reject in rejects}
    kept = [value for row, value in enumerate(column.to_pylist()) if row not in refused]
    written = [json.loads(row["payload"])["n"] for row in encoded]
    assert written == [str(value) if isinstance(value, Decimal) else value for value in kept]
