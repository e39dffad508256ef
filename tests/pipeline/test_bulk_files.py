"""Files of a bulk submit: their identity is their content, and their values are those that they
hold."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import ConfigurationError
from fairlead.pipeline.bulk.checks import Reject
from fairlead.pipeline.bulk.files import data_files
from fairlead.pipeline.bulk.text_rows import (
    JSON_SCHEMA,
    batches,
    csv_header,
    csv_rows,
    csv_schema,
    json_rows,
)
from fairlead.pipeline.errors import RefusedRows
from fairlead.pipeline.jobs.submit import FileSubmission
from tests.pipeline.test_bulk_rows import encode

URL = "sqlite:///tasks.db"


def submission(path: Path, **given: Any) -> FileSubmission:
    return FileSubmission(path, URL, "orders", **{"task": "pay", "args": "account", **given})


def read(path: Path, **given: Any) -> tuple[list[dict[str, Any]], list[Reject]]:
    """Return the rows of a CSV or JSON file as a submit stages them, and the refused ones."""
    found = submission(path, **given)
    rows, rejects = [], []
    for file in found.files:
        if found.format == "csv":
            read = batches(csv_rows(file, found.columns), csv_schema(found.columns))
        else:
            read = batches(json_rows(file, found.args_columns, None), JSON_SCHEMA)
        for batch in read:
            types = ",".join(f"{name}={type_}" for name, type_ in found.text_types.items())
            args = found.args if found.format == "csv" else None
            good, bad = encode(batch, args_columns=args, types=types or None, task=found.task)
            rows += good
            rejects += bad
    return rows, rejects


def arguments(rows: list[dict[str, Any]]) -> list[Any]:
    return [json.loads(row["payload"]) for row in rows]


# identity -----------------------------------------------------------------------------------------


def test_a_file_is_known_by_its_bytes_and_options_and_not_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("account\n00123\n")
    first = submission(file).identity
    (tmp_path / "link.csv").symlink_to(file)
    (tmp_path / "hard.csv").hardlink_to(file)
    copy = tmp_path / "other" / "copy.csv"
    copy.parent.mkdir()
    copy.write_bytes(file.read_bytes())
    (copy.parent / "_SUCCESS").touch()
    (copy.parent / ".copy.csv.crc").touch()
    for other in (tmp_path / "link.csv", tmp_path / "hard.csv", copy, copy.parent):
        assert submission(other).identity == first
    assert submission(file, order_by="account", types=None, on_error="quarantine").identity == first
    for changed in ({"task": "refund"}, {"types": "account=int"}, {"args": None}):
        assert submission(file, **changed).identity != first
    copy.write_text("account\n00124\n")
    assert submission(copy).identity != first
    assert submission(file, submission_id="march").identity == "march"


def test_a_folder_is_the_set_of_its_files_and_of_the_columns_in_its_names(tmp_path: Path) -> None:
    def written(name: str, files: dict[str, str]) -> str:
        for file, text in files.items():
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_text(text)
        return submission(tmp_path / name).identity

    first = written("a", {"day=1/p1.csv": "account\n1\n", "day=2/p2.csv": "account\n2\n"})
    assert first == written("b", {"day=1/x.csv": "account\n1\n", "day=2/x.csv": "account\n2\n"})
    assert first != written("c", {"day=2/p1.csv": "account\n1\n", "day=1/p2.csv": "account\n2\n"})
    assert first != written("d", {"day=1/p1.csv": "account\n1\n"})
    with pytest.raises(ConfigurationError, match=r"several formats \(csv, json\)"):
        written("e", {"a.csv": "account\n1\n", "b.json": "{}"})
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="no file in this folder"):
        submission(tmp_path / "empty").identity  # noqa: B018 - the property raises


@pytest.mark.parametrize("kind", ["link to a folder", "link to nothing", "pipe", "loop"])
def test_a_folder_leaves_out_no_rows_in_silence(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "in"
    (folder / "day=1").mkdir(parents=True)
    (folder / "day=1" / "a.csv").write_text("account\n1\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.csv").write_text("account\n2\n")
    name = folder / "day=1" / "x.csv"
    match kind:
        case "link to a folder":
            name.symlink_to(tmp_path / "more")
        case "link to nothing":
            name.symlink_to(tmp_path / "none.csv")
        case "pipe":
            os.mkfifo(name)
        case "loop":
            name.symlink_to(folder)
    with pytest.raises(ConfigurationError, match=r"x\.csv: |none\.csv"):
        data_files(folder)
    hidden = name.rename(name.with_name(".x.csv"))
    assert [file.name for file in data_files(folder)] == ["day=1/a.csv"]
    if kind == "pipe":
        with pytest.raises(ConfigurationError, match="not a regular file"):
            data_files(hidden)


def test_a_file_or_folder_that_cannot_be_read_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.csv"
    file.write_text("account\n1\n")
    found = submission(tmp_path)
    assert len(found.files) == 1
    file.unlink()
    with pytest.raises(ConfigurationError, match=r"a\.csv: cannot be read: No such file"):
        found.identity  # noqa: B018 - the property raises

    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(ConfigurationError, match="cannot be read: Permission denied"):
        data_files(tmp_path)


@pytest.mark.parametrize("name", ["jobs.csv", "jobs.jsonl"])
@pytest.mark.parametrize("change", ["more rows", "another file", "removed"])
def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, name: str, change: str
) -> None:
    file = tmp_path / name
    text = "account\n1\n2\n" if name.endswith("csv") else '{"account": 1}\n{"account": 2}\n'
    file.write_text(text)
    (found,) = data_files(file)
    rows = (
        csv_rows(found, ["account"])
        if name.endswith("csv")
        else json_rows(found, ["account"], None)
    )
    next(rows)
    match change:
        case "more rows":
            file.write_text(text * 2)
        case "another file":
            (tmp_path / "new").write_text(text)
            os.utime(tmp_path / "new", ns=(1, 1))
            (tmp_path / "new").replace(file)
        case "removed":
            file.unlink()
    with pytest.raises(RefusedRows, match=f"{name}: changed while it was read"):
        list(rows)


# CSV ----------------------------------------------------------------------------------------------


def test_the_texts_of_a_csv_file_stay_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_bytes(
        b'\xef\xbb\xbfaccount,note\r\n00123,1e5\r\n" 1.0 ","a ""b"",\nc"\r\n,NaN\r\ntrue,\xc3\xa9\r\n'
    )
    rows, rejects = read(file, args="account,note")
    assert not rejects and arguments(rows) == [
        {"account": "00123", "note": "1e5"},
        {"account": " 1.0 ", "note": 'a "b",\nc'},
        {"account": "", "note": "NaN"},
        {"account": "true", "note": "é"},
    ]
    assert submission(file, args="account,note").described()["types"] == {
        "account": "text",
        "note": "text",
    }


def test_declared_types_convert_texts_and_refuse_what_does_not_fit(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text(
        "account,amount,count,ok,day,priority,weight,run_at,ordering_key\n"
        "007,1.20,7,true,2026-01-31,3,2.5,2026-01-31T12:00:00+02:00,k\n"
        "8,,,,,,,,\n"
        "9,1e5,7,true,2026-01-31,3,1,,\n"
        "9,1,7.0,true,2026-01-31,3,1,,\n"
        "9,1,9223372036854775808,true,2026-01-31,3,1,,\n"
        "9,1,7,yes,2026-01-31,3,1,,\n"
        "9,1,7,true,31.1.2026,3,1,,\n"
        "9,1,7,true,2026-01-31,77,1,,\n"
        "9,1,7,true,2026-01-31,3,9007199254740993,,\n"
        "9,1,7,true,2026-01-31,3,nan,,\n"
        "9,1,7,true,2026-01-31,3,1,2026-01-31T12:00:00,\n"
        "9,1,7,true,2026-01-31,3,1,290000-01-31T12:00:00Z,\n"
    )
    rows, rejects = read(
        file,
        args="account,amount,count,ok,day",
        types="amount=decimal,count=int,ok=bool,day=date",
    )
    assert arguments(rows) == [
        {"account": "007", "amount": "1.20", "count": 7, "ok": True, "day": "2026-01-31"},
        {"account": "8", "amount": None, "count": None, "ok": None, "day": None},
    ]
    assert [(row["priority"], row["weight"], row["ordering_key"]) for row in rows] == [
        (3, 2.5, "k"),
        (5, 1.0, None),
    ]
    assert [row["run_at"] for row in rows] == [1769853600000000, None]
    columns = [
        "amount",
        "count",
        "count",
        "ok",
        "day",
        "priority",
        "weight",
        "weight",
        "run_at",
        "run_at",
    ]
    assert [reject.column for reject in rejects] == columns
    assert rejects[0].reason == "jobs.csv line 4: amount '1e5': use a number such as 1.20 (decimal)"
    assert rejects[5].reason.endswith("priority 77: use a whole number from 0 (first) to 9 (last)")


def test_a_csv_row_that_cannot_be_read_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_bytes(b'account,note\n1,a\n2\n3,b,c\n4,\xff\n\n"5"x,d\n6,e\n')
    rows, rejects = read(file, args="account,note")
    assert [row["account"] for row in arguments(rows)] == ["1", "6"]
    assert [reject.reason for reject in rejects] == [
        "jobs.csv line 3: 1 fields, but the header has 2",
        "jobs.csv line 4: 3 fields, but the header has 2",
        r"jobs.csv line 5: note '\udcff': not valid Unicode",
        "jobs.csv line 7: ',' expected after '\"'",
    ]
    file.write_text('account\n1\n"2\n3\n')
    with pytest.raises(RefusedRows, match="a quote after line 2 is not closed"):
        read(file)


def test_the_columns_of_csv_files_are_named_once_and_are_the_same_in_all_files(
    tmp_path: Path,
) -> None:
    for name, text in (("a.csv", "account,n\n1,2\n"), ("b.csv", "n,account\n4,3\n")):
        (tmp_path / "in" / "day=07").mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / "day=07" / name).write_text(text)
    rows, rejects = read(tmp_path / "in", args="account,n,day")
    assert not rejects and arguments(rows) == [
        {"account": "1", "n": "2", "day": "07"},
        {"account": "3", "n": "4", "day": "07"},
    ]
    for text, problem in (
        ("", "must name every column"),
        ("a,,b\n", "must name every column"),
        ("a,b,a\n", "column a is there twice"),
        ("account\n", "have different columns"),
        ('account,"n\n1,2\n', "the first line cannot be read: unexpected end of data"),
        (f"{'a' * 200_000},n\n", "have different columns"),
    ):
        (tmp_path / "in" / "day=07" / "b.csv").write_text(text)
        with pytest.raises(ConfigurationError, match=problem):
            csv_header(data_files(tmp_path / "in"))


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_a_csv_file_in_another_encoding_is_refused_by_its_header(
    tmp_path: Path, encoding: str
) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("größe\n1\n", encoding=encoding)
    with pytest.raises(ConfigurationError, match="the first line is not UTF-8"):
        submission(file, args=None).described()


def test_an_order_by_column_of_text_needs_a_declared_type(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("account,n,ordering_key,run_at\n")
    with pytest.raises(ConfigurationError, match="--types n=int"):
        submission(file, args="account,n", order_by="n").described()
    for fine in ({"types": "n=text", "order_by": "n"}, {"order_by": "run_at"}):
        submission(file, args="account,n", **fine).described()
    with pytest.raises(ConfigurationError, match="use COLUMN=TYPE with one of text, int,"):
        submission(file, types="n=money").described()


# JSON ---------------------------------------------------------------------------------------------


def test_the_arguments_of_a_json_line_keep_their_types_and_digits(tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_text(
        '{"account": "00123", "n": 1, "priority": 3, "run_at": "2026-01-31T12:00:00Z"}\n'
        '{"account": 7, "n": 1.50, "weight": 2, "context": {"trace": "a"}}\n\n'
        '{"account": [1, {"b": null}], "n": 123456789012345678901234567890}\n'
        '{"n": null}\n'
    )
    rows, rejects = read(file, args="account,n")
    assert not rejects and [row["payload"] for row in rows] == [
        b'{"account":"00123","n":1}',
        b'{"account":7,"n":1.50}',
        b'{"account":[1,{"b":null}],"n":123456789012345678901234567890}',
        b'{"account":null,"n":null}',
    ]
    assert [row["priority"] for row in rows] == [3, 5, 5, 5]
    assert [row["weight"] for row in rows] == [1.0, 2.0, 1.0, 1.0]
    assert rows[0]["run_at"] == 1769860800000000 and rows[1]["context"] == '{"trace": "a"}'
    with pytest.raises(ConfigurationError, match="JSON has types of its own"):
        submission(file, types="n=int").described()


@pytest.mark.parametrize(
    ("line", "column", "reason"),
    [
        ("[1]", "(row)", "not a JSON object on one line: Expected `object`, got `array`"),
        ('{"account": NaN}', "(row)", "not a JSON object on one line: JSON is malformed"),
        ('{"account": 1e999}', "payload", "payload: Number out of range"),
        ('{"konto": 1}', "konto", "unknown field konto: name it among the arguments"),
        ('{"account": 1, "payload": {}}', "payload", "arguments are given twice"),
        ('{"priority": 1.0}', "priority", "priority 1.0: use a whole number"),
        ('{"weight": 1e300}', "weight", "weight 1e+300: use a number from"),
        ('{"weight": true}', "weight", "weight True: use a number from"),
        ('{"queue": 5}', "queue", "queue name 5: use a string"),
        ('{"name": ""}', "name", "task name is empty"),
        ('{"run_at": 5}', "run_at", "run_at 5: use an instant"),
        ('{"run_at": "2026-01-31"}', "run_at", "run_at: naive datetime"),
        (
            '{"run_at": "0001-01-01T00:00:00+14:00"}',
            "run_at",
            "run_at 0001-01-01T00:00:00+14:00: use an instant in the years 1 to 9999, in UTC",
        ),
        (
            '{"run_at": "9999-12-31T23:59:59-14:00"}',
            "run_at",
            "run_at 9999-12-31T23:59:59-14:00: use an instant in the years 1 to 9999, in UTC",
        ),
        ('{"context": {"a": 1}}', "context", "context['a'] 1: use a string"),
        ('{"ordering_key": "a\\u0000"}', "ordering_key", "ordering_key 'a\\x00': must not hold"),
    ],
)
def test_a_json_line_that_cannot_be_a_task_is_refused_with_its_line(
    tmp_path: Path, line: str, column: str, reason: str
) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_text('{"account": 1}\n' + line + "\n")
    rows, rejects = read(file)
    assert arguments(rows) == [{"account": 1}]
    assert [(reject.ordinal, reject.column) for reject in rejects] == [(1, column)]
    assert rejects[0].reason.startswith(f"jobs.jsonl line 2: {reason}")


def test_a_field_of_a_json_line_and_of_a_folder_is_given_twice(tmp_path: Path) -> None:
    (tmp_path / "account=7").mkdir()
    file = tmp_path / "account=7" / "jobs.jsonl"
    file.write_text('{"account": 8, "n": 1}\n{"n": 2}\n')
    rows, rejects = read(tmp_path, args="account,n")
    assert arguments(rows) == [{"account": "7", "n": 2}]
    assert rejects[0].reason.endswith(
        "account is given twice: by the line, and by the name of a folder"
    )


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(st.lists(values, max_size=5))
def test_any_json_value_is_submitted_as_it_is_or_refused(
    tmp_path_factory: pytest.TempPathFactory, given: list[Any]
) -> None:
    file = tmp_path_factory.mktemp("json") / "jobs.jsonl"
    file.write_text("".join(json.dumps({"account": value}) + "\n" for value in given))
    rows, rejects = read(file)
    refused = {reject.ordinal for reject in rejects}
    assert arguments(rows) == [
        {"account": value} for number, value in enumerate(given) if number not in refused
    ]
    assert all(
        "Infinity" in json.dumps(given[n]) or "\\ud" in json.dumps(given[n]) for n in refused
    )


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), min_size=1, max_size=5)
)
def test_any_text_survives_a_csv_file(
    tmp_path_factory: pytest.TempPathFactory, given: list[str]
) -> None:
    file = tmp_path_factory.mktemp("csv") / "jobs.csv"
    quoted = ['"' + text.replace('"', '""') + '"' for text in given]
    file.write_bytes(("account\r\n" + "".join(text + "\r\n" for text in quoted)).encode())
    rows, rejects = read(file)
    assert not rejects and arguments(rows) == [{"account": text} for text in given]
