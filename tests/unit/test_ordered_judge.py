"""The judge of long runs of ordered queues detects each kind of broken promise, and excuses tasks in
flight at a fault."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from bench.ordered_judge import SETTLED, Away, Job, Record, Verdict, judge, percentile

ONE, TWO = 101, 102
"""Process ids."""
JOBS = [Job("a", "1", 100), Job("a", "2", 200), Job("a", "3", 200), Job("b", "1", 100)]


def story(text: str) -> list[Record]:
    """Parse words like `start:a1@150/101`: event, ordering key and unique key, time, process; the
    attempt after a second slash."""
    records = []
    for word in text.split():
        what, rest = word.split(":")
        name, rest = rest.split("@")
        at, pid, *attempt = rest.split("/")
        records.append(
            Record(what, int(at), int(pid), int(attempt[0]) if attempt else 1, name[0], name[1:])
        )
    return records


def run(name: str, at: int, pid: int = ONE) -> str:
    return f"start:{name}@{at}/{pid} end:{name}@{at + 10}/{pid}"


def kinds(verdict: Verdict) -> list[str]:
    return sorted(verdict.violations.elements())


REST = run("b1", 100)


def test_jobs_that_run_once_in_order_and_not_early_are_no_violation() -> None:
    text = f"start:a1@100/{ONE} start:b1@104/{TWO} end:a1@110/{ONE} {run('a2', 230)} end:b1@240/{TWO} {run('a3', 260)}"
    found = judge(JOBS, story(text))
    assert (kinds(found), found.tasks, found.runs, found.ran_twice, found.cut) == ([], 4, 4, 0, 0)
    assert list(found.late) == [0, 4, 30, 60]
    assert list(found.waited) == [0, 4, 30, 20], "a3 waited for the end of a2 until 240"


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        (f"{run('a1', 100)} {run('a2', 200)} {REST}", ["lost"]),
        (f"{run('a1', 100)} {run('a2', 200)} start:a3@220/{ONE} {REST}", ["lost"]),
        (f"{run('a1', 100)} {run('a2', 200)} start:a3@220/{ONE} cut:a3@221/{ONE} {REST}", ["lost"]),
        ("", ["lost"] * 4),
        (f"{run('a1', 100)} {run('a3', 200)} {run('a2', 220)} {REST}", ["order", "order"]),
        (f"{run('a2', 200)} {run('a3', 220)} {REST}", ["lost", "order"]),
        (f"{run('a1', 99)} {run('a2', 200)} {run('a3', 220)} {REST}", ["early"]),
        (f"{run('a1', 100)} {run('a1', 120)} {run('a2', 200)} {run('a3', 220)} {REST}", ["double"]),
        (f"{run('a1', 100)} {run('a2', 200)} {run('a1', 220)} {run('a3', 240)} {REST}", ["double"]),
        (
            f"{run('a1', 100)} {run('a2', 200)} {run('a3', 220)} {run('b9', 240)} {run('c1', 240)} {REST}",
            ["unknown", "unknown", "unknown"],
        ),
        (
            f"start:a1@100/{ONE} start:a2@200/{TWO} end:a1@205/{ONE} end:a2@210/{TWO} {run('a3', 220)} {REST}",
            ["overlap"],
        ),
        (
            f"start:a1@100/{ONE} start:a1@150/{TWO} end:a1@205/{ONE} end:a1@210/{TWO} {run('a2', 220)} {run('a3', 240)} {REST}",
            ["double", "overlap"],
        ),
        (f"{run('a1', 100)} end:a1@120/{ONE} {run('a2', 200)} {run('a3', 220)} {REST}", ["stray"]),
        (
            f"start:a1@100/{ONE} cut:a1@150/{ONE} {run('a2', 200)} {run('a3', 220)} {REST}",
            ["lost", "order"],
        ),
        (
            f"start:a1@100/{ONE} cut:a1@150/{ONE} {run('a1', 160)} {run('a2', 200)} {run('a3', 220)} {REST}",
            ["double"],
        ),
    ],
)
def test_each_kind_of_broken_promise_is_found(text: str, broken: list[str]) -> None:
    found = judge(JOBS, story(text))
    assert kinds(found) == broken
    assert all(any(line.startswith(kind) for line in found.shown) for kind in broken)


def test_runs_of_a_killed_process_may_be_repeated_after_the_kill_and_not_before() -> None:
    text = f"start:a1@100/{ONE} start:a1@{{at}}/{TWO} end:a1@300/{TWO} {run('a2', 310)} {run('a3', 330)} {REST}"
    after = judge(JOBS, story(text.format(at=151)), {ONE: 150})
    assert (kinds(after), after.cut, after.ran_twice) == ([], 1, 0)
    before = judge(JOBS, story(text.format(at=149)), {ONE: 150})
    assert kinds(before) == ["overlap"]


def test_a_run_whose_end_was_not_written_when_its_process_was_killed_may_run_again_and_is_counted() -> (
    None
):
    text = (
        f"{run('a1', 100)} {run('a1', 200, TWO)} {run('a2', 220, TWO)} {run('a3', 240, TWO)} {REST}"
    )
    at_once = judge(JOBS, story(text), {ONE: 150})
    assert (kinds(at_once), at_once.ran_twice, at_once.runs) == ([], 1, 5)
    assert kinds(judge(JOBS, story(text), {ONE: 110 + SETTLED + 1})) == ["double"], (
        "the end of this run was written long before the kill"
    )
    assert kinds(judge(JOBS, story(text), {TWO: 150})) == ["double"], "another process was killed"


def test_only_the_last_run_of_a_key_was_in_flight_at_a_kill() -> None:
    text = f"{run('a1', 100)} {run('a2', 200)} {run('a1', 220, TWO)} {run('a2', 240, TWO)} {run('a3', 260, TWO)} {REST}"
    assert "double" in kinds(judge(JOBS, story(text), {ONE: 215}))


def test_a_task_interrupted_by_a_kill_runs_before_the_next_one_of_its_key() -> None:
    text = f"start:a1@100/{ONE} {run('a2', 200, TWO)} {run('a3', 220, TWO)} {REST}"
    assert kinds(judge(JOBS, story(text), {ONE: 150})) == ["lost", "order"]


def test_during_an_outage_tasks_in_flight_may_run_again_but_never_overlap() -> None:
    again = f"{run('a1', 100)} {run('a1', 400, TWO)} {run('a2', 420)} {run('a3', 440)} {REST}"
    assert (
        found := judge(JOBS, story(again), away=[Away(105, 300)])
    ).ran_twice == 1 and not found.violations
    assert kinds(judge(JOBS, story(again), away=[Away(111 + SETTLED, 300 + SETTLED)])) == ["double"]
    assert kinds(judge(JOBS, story(again), away=[Away(50, 99)])) == ["double"]
    cut = f"start:a1@100/{ONE} cut:a1@190/{ONE} {run('a1', 400, TWO)} {run('a2', 420)} {run('a3', 440)} {REST}"
    assert (
        found := judge(JOBS, story(cut), away=[Away(150, 300)])
    ).cut == 1 and not found.violations
    beside = f"start:a1@100/{ONE} start:a1@190/{TWO} cut:a1@200/{ONE} end:a1@210/{TWO} {run('a2', 420)} {run('a3', 440)} {REST}"
    assert kinds(judge(JOBS, story(beside), away=[Away(50, 300)])) == ["overlap"]


def test_jobs_of_the_same_time_are_ordered_by_unique_key_and_lines_are_read_back_unchanged() -> (
    None
):
    jobs = [Job("a", key, 100) for key in ("00000010", "00000009")]
    right = f"{run('a00000009', 100)} {run('a00000010', 120)}"
    wrong = f"{run('a00000010', 100)} {run('a00000009', 120)}"
    assert not judge(jobs, story(right)).violations
    assert kinds(judge(jobs, story(wrong))) == ["order", "order"]
    assert [Record.of(record.line) for record in story(right)] == story(right)


@pytest.mark.parametrize("seed", range(20))
def test_a_long_story_with_kills_is_accepted_until_one_run_is_missing_or_doubled(
    seed: int,
) -> None:
    chance = random.Random(seed)
    jobs = [Job(f"k{n % 7}", f"{n:04}", n * 10) for n in range(300)]
    records, kills, pid = [], {}, 1000
    for job in jobs:  # one allowed order
        at = job.due + 1
        if chance.random() < 0.1:
            has_ended = chance.random() < 0.5
            records.append(Record("start", at, pid, 1, *job[:2]))
            records += [Record("end", at + 1, pid, 1, *job[:2])] if has_ended else []
            kills[pid], pid = at + 2, pid + 1
        records += [
            Record("start", at + 3, pid, 1, *job[:2]),
            Record("end", at + 5, pid, 1, *job[:2]),
        ]
    found = judge(jobs, records, kills)
    assert (
        not found.violations
        and found.cut + found.ran_twice == len(kills)
        and found.runs == 300 + len(kills)
    )
    starts = Counter(record.unique_key for record in records if record.what == "start")
    once = [
        n
        for n, record in enumerate(records)
        if record.what == "start" and starts[record.unique_key] == 1
    ]
    gone = chance.choice(once)
    assert kinds(judge(jobs, records[:gone] + records[gone + 2 :], kills))[-1] in ("lost", "order")
    again = [record._replace(at=record.at + 10**9) for record in records[gone : gone + 2]]
    assert kinds(judge(jobs, [*records, *again], kills)) == ["double"]


def test_percentiles_are_measured_values() -> None:
    values = sorted(n * 1_000_000 for n in range(100))
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([], 0.5)) == (
        50.0,
        99.0,
        0.0,
    )
