"""Traces in the Standard Workload Format: jobs, bad lines, and the tenant of each job."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from fairlead.lab.replay.report import judge
from fairlead.lab.trace import (
    BadLine,
    BrokenTrace,
    Tenants,
    TraceJob,
    parse_job,
    read_trace,
    survey,
)


def line(
    job: object = 1, submit: object = 0, run: object = 10, user: object = 3, group: object = 4
) -> str:
    return f"  {job} {submit} -1 {run} 1 -1 -1 -1 1200 -1 -1 {user} {group} -1 -1 1 -1 -1"


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{text}\n" for text in lines))
    return path


def test_jobs_come_in_the_order_of_the_file_without_comments_and_empty_lines(
    tmp_path: Path,
) -> None:
    path = written(
        tmp_path / "t.swf", "; Version: 2", "", line(1, 5), "  ; indented", line(2, 7, 1.5, 8, 9)
    )
    assert list(read_trace(path)) == [TraceJob(1, 5.0, 10.0, 3, 4), TraceJob(2, 7.0, 1.5, 8, 9)]


def test_a_gzipped_trace_is_known_by_its_content_not_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.swf"
    path.write_bytes(gzip.compress(f"; header\n{line()}\n".encode()))
    assert [job.number for job in read_trace(path)] == [1]


def test_a_field_of_minus_one_is_unknown() -> None:
    job = parse_job(line(7, 3, -1, -1, -1))
    assert job == TraceJob(7, 3.0, 0.0, None, None)
    assert isinstance(job, TraceJob)
    assert job.tenant(Tenants.USER) == "user-unknown"
    assert job.tenant(Tenants.GROUP) == "group-unknown"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (line() + " 1", "it has 19 fields, not 18"),
        ("hello", "it has 1 fields, not 18"),
        (line(job="x"), "field 1 (job number) is 'x', not a number"),
        (line(job=1.5), "field 1 (job number) is '1.5', not a number"),
        (line(job=-1), "field 1 (job number) is -1: use 0 or more"),
        (line(submit=-1), "field 2 (submit time) is -1: use 0 or more"),
        (line(submit="nan"), "field 2 (submit time) is 'nan', not a number"),
        (line(run="inf"), "field 4 (run time) is 'inf', not a number"),
        (line(user="1_0"), "field 12 (user) is '1_0', not a number"),
        (line(group="\u0661"), "field 13 (group) is '\u0661', not a number"),
    ],
)
def test_the_error_of_a_bad_line_names_the_field_and_the_reason(text: str, reason: str) -> None:
    assert parse_job(text) == reason


def test_a_bad_line_stops_the_reading_with_its_number(tmp_path: Path) -> None:
    path = written(tmp_path / "t.swf", "; header", line(1), "broken", line(2))
    jobs = read_trace(path)
    assert next(jobs).number == 1
    with pytest.raises(BrokenTrace, match=r"t\.swf, line 3: it has 1 fields, not 18"):
        next(jobs)


def test_skipped_bad_lines_are_reported_one_by_one(tmp_path: Path) -> None:
    path = written(tmp_path / "t.swf", line(1), "broken", "9" * 200_000, line(2))
    bad: list[BadLine] = []
    assert [job.number for job in read_trace(path, bad.append)] == [1, 2]
    assert bad == [
        BadLine(2, "it has 1 fields, not 18"),
        BadLine(3, "longer than 65,536 characters"),
    ]


def test_bytes_that_are_no_text_are_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "t.swf"
    path.write_bytes(
        b"; caf\xe9\n" + line(1).encode() + b"\n" + line(job="\x00").encode() + b"\n\xff\xfe\n"
    )
    bad: list[BadLine] = []
    assert [job.number for job in read_trace(path, bad.append)] == [1]
    assert [found.number for found in bad] == [3, 4]


def test_a_compressed_trace_that_is_cut_off_is_an_error_even_when_bad_lines_are_left_out(
    tmp_path: Path,
) -> None:
    whole = gzip.compress("".join(f"{line(n)}\n" for n in range(5000)).encode())
    path = tmp_path / "t.swf.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BrokenTrace, match="cannot read .*t.swf.gz after line"):
        list(read_trace(path, lambda _bad: None))


def test_the_error_about_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BrokenTrace, match="No such file or directory"):
        list(read_trace(tmp_path / "none.swf"))


def test_a_survey_ranks_the_tenants_and_finds_the_median_tenant(tmp_path: Path) -> None:
    users = [1] * 10 + [2] * 5 + [3] * 3 + [4] * 3 + [5]
    path = written(
        tmp_path / "t.swf", *(line(n, 100 - n, n, user) for n, user in enumerate(users)), "broken"
    )
    found = survey(path, Tenants.USER, skip_bad=True)
    assert found.tenants == {"user-1": 10, "user-2": 5, "user-3": 3, "user-4": 3, "user-5": 1}
    assert (found.heaviest, found.median) == ("user-1", "user-3")
    assert (found.jobs, found.bad_lines, found.longest_run) == (22, 1, 21.0)
    assert (
        found.first_submit == 79.0
    )  # the file is not sorted by time, so the earliest job is not the first line


def test_a_limit_counts_jobs_and_no_later_line_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "t.swf", "; header", line(1), line(2), "broken")
    assert survey(path, Tenants.GROUP, limit=2).tenants == {"group-4": 2}


def test_a_trace_without_a_job_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "t.swf", "; nothing", "broken")
    with pytest.raises(BrokenTrace, match=r"holds no job \(1 bad lines\)"):
        survey(path, Tenants.USER, skip_bad=True)


def test_the_judge_counts_each_job_that_did_not_run_and_each_additional_run(tmp_path: Path) -> None:
    (tmp_path / "1.runs").write_bytes(b"1\n2\n2\n")
    (tmp_path / "2.runs").write_bytes(b"4\n2\n")
    verdict = judge([1, 2, 3, 4, 4], tmp_path.glob("*.runs"))
    assert (verdict.lost, verdict.ran_twice) == (
        2,
        2,
    )  # job 3 and one of the two jobs 4 did not run; job 2 ran three times


@pytest.mark.full("a long run")
def test_the_real_trace_is_read_whole(shared_data: Path | None) -> None:
    if shared_data is None or not (shared_data / "lcg-2005.swf.gz").is_file():
        pytest.skip(
            "the trace lcg-2005.swf.gz of the Parallel Workloads Archive is not in ../shared/data"
        )
    path = shared_data / "lcg-2005.swf.gz"
    found = survey(path, Tenants.USER)
    assert (found.jobs, len(found.tenants), found.tenants[found.heaviest]) == (188_041, 216, 60_658)
    assert len(survey(path, Tenants.GROUP).tenants) == 28
    assert max(Counter(job.number for job in read_trace(path)).values()) == 1
