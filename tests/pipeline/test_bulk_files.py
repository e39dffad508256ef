"""Files become tasks with the values that they hold, and a file is known by its content."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fairlead import App
from fairlead.errors import ConfigurationError
from fairlead.pipeline.bulk.stage import ContentDiffers, SubmissionTotals
from fairlead.pipeline.errors import RefusedRows
from fairlead.pipeline.jobs.submit import FileSubmission, run_submit
from tests.pipeline.bulk import APP, left_in_stage, rows


def submission(file: Path, task: str = "pay", id: str | None = None) -> FileSubmission:
    return FileSubmission(APP, task, file, id, "sqlite:///tasks.db")


def identity(file: Path, **given: Any) -> str:
    return submission(file, **given).options["submission_id"]


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    file = tmp_path / "jobs.csv"
    file.write_text("account,n\n00123,1\n")
    return file


# identity -----------------------------------------------------------------------------------------


def test_a_file_is_known_by_its_content_and_its_task(tmp_path: Path, csv: Path) -> None:
    first = identity(csv)
    copy = tmp_path / "copies" / "renamed.csv"
    copy.parent.mkdir()
    shutil.copy(csv, copy)
    for hidden in ("_SUCCESS", ".renamed.csv.crc"):
        (copy.parent / hidden).touch()
    (tmp_path / "link.csv").symlink_to(csv)
    for other in (tmp_path / "link.csv", copy, copy.parent):
        assert identity(other) == first
    copy.write_text("account,n\n00124,1\n")
    assert identity(copy) != first
    assert identity(csv, id="march") == "march"
    with pytest.raises(ConfigurationError, match="no task named 'refund'"):
        identity(csv, task="refund")


def test_a_folder_is_the_set_of_its_files_and_of_the_columns_in_its_names(tmp_path: Path) -> None:
    def written(name: str, files: dict[str, str]) -> str:
        for file, text in files.items():
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_text(text)
        return identity(tmp_path / name)

    first = written("a", {"account=1/p1.csv": "n\n1\n", "account=2/p2.csv": "n\n2\n"})
    assert first == written("b", {"account=1/x.csv": "n\n1\n", "account=2/x.csv": "n\n2\n"})
    assert first != written("c", {"account=2/p1.csv": "n\n1\n", "account=1/p2.csv": "n\n2\n"})
    assert first != written("d", {"account=1/p1.csv": "n\n1\n"})
    with pytest.raises(ConfigurationError, match=r"\.csv, \.json: give files of one kind"):
        written("e", {"a.csv": "n\n1\n", "b.json": "{}"})
    with pytest.raises(ConfigurationError, match=r"\.txt: give files of one kind; known suffixes"):
        written("f", {"a.txt": "n\n1\n"})
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="no file in this folder"):
        identity(tmp_path / "empty")


# with Spark ---------------------------------------------------------------------------------------


class Files:
    """Files that are submitted to one store."""

    def __init__(self, url: str, spark: SparkSession, folder: Path) -> None:
        self.url, self.spark, self.folder = url, spark, folder

    def submit(self, name: str, id: str | None = None) -> SubmissionTotals:
        return run_submit(self.spark, FileSubmission(APP, "pay", self.folder / name, id, self.url))

    def submitted(self, name: str, text: str | bytes | None = None) -> list[Any]:
        """Return the arguments that the file adds, in order; a repeat adds none."""
        if text is not None:
            data = text.encode() if isinstance(text, str) else text
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(data)
        before = self.payloads()
        totals = self.submit(name)
        found = self.payloads()[len(before) :]
        assert totals.inserted == len(found) and not totals.is_repeat
        again = self.submit(name)
        assert (again.inserted, again.is_repeat) == (len(found), True)
        assert len(self.payloads()) == len(before) + len(found)
        return found

    def payloads(self) -> list[Any]:
        found = rows(self.url, "SELECT payload FROM fairlead_tasks ORDER BY id")
        return [json.loads(bytes(row["payload"])) for row in found]


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Files:
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    app = App(url)
    app.migrate()
    app.close()
    return Files(url, spark, tmp_path)


def test_a_csv_file_holds_texts_that_the_annotations_convert(files: Files) -> None:
    text = '\ufeffaccount,n,amount\r\n00123,1,1.20\r\n" 1.0 ",2,\r\n"a ""b"",\nc",3,5\r\n"",4,\r\n'
    assert files.submitted("jobs.csv", text) == [
        {"account": "00123", "n": 1, "amount": "1.20"},
        {"account": " 1.0 ", "n": 2, "amount": None},
        {"account": 'a "b",\nc', "n": 3, "amount": "5"},
        {"account": "", "n": 4, "amount": None},
    ]
    rows_of = "".join(f"a,{n}\n" for n in range(3000))
    found = files.submitted("many.csv", "account,n\n" + rows_of)
    assert [row["n"] for row in found] == list(range(3000)), "the order of the file"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("account,n\na\n", "Malformed CSV record: a"),
        ("account,n\na,1,2\n", "Malformed CSV record: a,1,2"),
        ("account,n\na,one\n", "row 0: task 'pay': Expected `int`"),
        ("account,konto\na,1\n", "unknown: konto; known: account, amount"),
        ('account,n\na,1\n"b,2\nc,3\n', 'Malformed CSV record: "b,2'),
        ("account,n\ngrün,1\n".encode("latin-1"), "save the file as UTF-8"),
    ],
)
def test_a_csv_file_with_a_bad_row_submits_nothing(
    files: Files, text: str | bytes, problem: str
) -> None:
    with pytest.raises((RefusedRows, ConfigurationError), match=problem):
        files.submitted("jobs.csv", text)
    assert files.payloads() == [] and left_in_stage(files.url) == 0


def test_csv_files_of_one_folder_must_have_the_same_columns_in_the_same_order(files: Files) -> None:
    (files.folder / "in").mkdir()
    (files.folder / "in" / "a.csv").write_text("account,n\na,1\n")
    (files.folder / "in" / "b.csv").write_text("n,account\n2,b\n")
    with pytest.raises(RefusedRows, match="CSV header does not conform"):
        files.submit("in")
    (files.folder / "in" / "b.csv").write_text("account,n\nb,2\n")
    assert sorted(row["n"] for row in files.submitted("in")) == [1, 2]


def test_json_lines_and_parquet_keep_their_types_and_folders_give_columns_of_text(
    files: Files,
) -> None:
    lines = "".join(f'{{"account":"01","n":{n},"flags":[true]}}\n' for n in (10, 9))
    assert files.submitted("jobs.jsonl", lines) == [
        {"account": "01", "n": n, "flags": [True]} for n in (10, 9)
    ]
    frame = files.spark.range(3).select(F.col("id").alias("n"), F.lit("007").alias("account"))
    frame.write.partitionBy("account").parquet(str(files.folder / "lake" / "jobs"))
    found = files.submitted("lake/jobs")
    assert sorted(found, key=lambda row: row["n"]) == [{"account": "007", "n": n} for n in range(3)]


def test_another_file_under_a_known_submission_id_is_an_error(files: Files) -> None:
    (files.folder / "a.csv").write_text("account,n\na,1\n")
    (files.folder / "b.csv").write_text("account,n\nb,1\n")
    assert files.submit("a.csv", "march").inserted == 1
    with pytest.raises(ContentDiffers, match="'march' was published with other content"):
        files.submit("b.csv", "march")
    assert files.submit("a.csv", "april").inserted == 1
    assert len(files.payloads()) == 2
