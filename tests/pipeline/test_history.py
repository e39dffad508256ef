"""History without Spark: equal to plain Python on drawn tables, and no row of another tenant."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.model import tenant_of
from fairlead.model.lake_history import AsOf, HistoryRows, Runs
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.jobs.erase import erase
from fairlead.pipeline.models import (
    ATTEMPTS,
    COST,
    FAIRNESS,
    INCIDENTS,
    LATENCY_HIST,
    SERVICE,
    TENANT_SHARE,
)
from fairlead.pipeline.reading.engine import file_name
from fairlead.pipeline.reading.history import History
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.builds import Builds
from fairlead.pipeline.warehouse.layout import part_name
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.pipeline.windows import GROWTH
from fairlead.ports.lake_history import Extent, Question
from tests.pipeline.frames import T0, attempt
from tests.pipeline.tables_by_hand import micros, put, row
from tests.tiers import examples

MINUTE_US, HOUR_US, DAY_US = 60_000_000, 3_600_000_000, 86_400_000_000
Rows = list[dict[str, Any]]
START = T0.replace(minute=0, second=0, microsecond=0)
FIRST = micros(START)

keys = st.sampled_from(
    [
        "",
        "*",
        "acme",
        "acme/7",
        "acme/8/x",
        "acme2",
        "/",
        "/a/b",
        "be\nta/ü",
        "beta",
        "'; --",
        "😀/1",
    ]
)
queues = st.sampled_from(["q", "payouts", "*"])
names = st.sampled_from(["pay", "send", "it's"])
minutes = st.builds(
    lambda hour, minute: 60 * hour + minute, st.sampled_from([0, 1, 23, 24, 71]), st.integers(0, 60)
)
"""Minutes in few hours, because each hour has a file."""
counts = st.integers(0, 1 << 40)


def tables_of(table: Table, fields: Mapping[str, st.SearchStrategy[Any]]) -> Any:
    """Return a strategy of rows of the table, each key at most once."""
    return st.lists(
        st.fixed_dictionaries(dict(fields)).map(lambda drawn: row(table, **drawn)),
        max_size=30,
        unique_by=lambda made: tuple(made[column] for column in table.key),
    )


def at_minutes(least: int = 1) -> st.SearchStrategy[Any]:
    return minutes.map(lambda minute: START + timedelta(minutes=minute // least * least))


@contextmanager
def history_of(rows: Mapping[Table, Sequence[Mapping[str, Any]]]) -> Iterator[History]:
    """Yield the history of a lake with these rows. All tests share the lake, because each commit
    waits for the disk; a new history would take its own look at the lake anyway."""
    lake, history = _shared()
    for table, made in rows.items():
        here = lake.table(table)
        seen = here.state()
        data = pa.Table.from_pylist([dict(each) for each in made], table.arrow())
        old = {file.part for file in here.files()}
        written = here.write(data, "drawn", seen)
        new = {part_name(table, each.partition[0]) for each in written}
        assert here.replace(old | new, written, seen)
    yield history


@functools.cache
def _shared() -> tuple[Warehouse, History]:
    folder = Path(tempfile.mkdtemp(prefix="o'lake [a-b]"))
    atexit.register(shutil.rmtree, folder)
    lake = Warehouse(Location.of(folder))
    assert lake.identity
    return lake, History(folder)


@pytest.fixture
def history(lake: Warehouse) -> History:
    assert lake.identity
    return History(str(lake.location.folder))


def in_scope(key: str, tenants: Collection[str] | None) -> bool:
    return tenants is None or tenant_of(key) in tenants


def ranked(weights: Mapping[str, tuple[Any, ...]], top: int) -> dict[str, tuple[str | None, int]]:
    """Return the name and the rank of each part: the greatest weights first, the rest together."""
    order = sorted(
        weights, key=lambda part: (*(-weight for weight in weights[part]), part.encode())
    )
    return {
        part: (part, rank) if rank <= top else (None, top + 1)
        for rank, part in enumerate(order, start=1)
    }


def expected_rows(
    found: HistoryRows[Any],
    rows: Rows,
    instant: str,
    question: Question,
    columns: Sequence[str],
    weigh: Sequence[str],
) -> dict[tuple[int, int], tuple[Any, ...]]:
    """Return (name of the part, *sums) by rank and step, in plain Python."""
    part_of = part_in(question.by)
    inside = [each for each in rows if found.since <= micros(each[instant]) < found.until]
    total: dict[str, list[Any]] = defaultdict(lambda: [0] * len(weigh))
    for each in inside:
        for n, column in enumerate(weigh):
            total[part_of(each)][n] += each[column]
    rank_of = ranked({part: tuple(sums) for part, sums in total.items()}, question.top)
    sums: dict[tuple[int, int], list[Any]] = {}
    for each in inside:
        part, rank = rank_of[part_of(each)]
        step = found.step_s * 1_000_000
        begun = found.since + (micros(each[instant]) - found.since) // step * step
        known = sums.setdefault((rank, begun), [part, *[0] * len(columns)])
        for n, column in enumerate(columns, start=1):
            known[n] += each[column]
    return {place: tuple(values) for place, values in sorted(sums.items())}


scopes = st.one_of(st.none(), st.frozensets(keys.map(tenant_of), max_size=3))
parts = st.sampled_from(["queue", "tenant", "name"])
periods = st.tuples(minutes, st.integers(1, 5000)).map(
    lambda drawn: {"since": FIRST + drawn[0] * MINUTE_US, "until": FIRST + sum(drawn) * MINUTE_US}
)
FOUR_DAYS = {"since": FIRST, "until": FIRST + 4 * DAY_US}


def questions(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Question]:
    """Return a strategy of questions about four days, with these fields drawn too."""
    drawn = {"top": st.integers(1, 4), "points": st.sampled_from([1, 2, 30, 200]), **fields}
    return st.fixed_dictionaries(drawn).map(lambda given: Question(**{**FOUR_DAYS, **given}))


def part_in(by: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda each: tenant_of(each["fairness_key"]) if by == "tenant" else each[by]


def shown(rows: Sequence[Any], *names: str) -> dict[tuple[int, int], tuple[Any, ...]]:
    """Return (name of the part, *values of these names) by rank and step."""
    return {
        (each.rank, each.at): (each.part, *(getattr(each, name) for name in names)) for each in rows
    }


def asked(rows: Rows, question: Question) -> Rows:
    """Return the rows in the scope of a question."""
    return [
        each
        for each in rows
        if in_scope(each["fairness_key"], question.tenants)
        and question.queue in (None, each["queue"])
    ]


@settings(max_examples=examples(300))
@given(
    rows=tables_of(
        SERVICE,
        {
            "window_start": at_minutes(),
            "queue": queues,
            "fairness_key": keys,
            "name": names,
            **dict.fromkeys(
                ("attempts_started", "attempts_done", "failed", "busy_us", "wasted_us"), counts
            ),
        },
    ),
    question=questions(by=parts, queue=st.none() | queues, tenants=scopes),
    period=st.just({"since": None, "until": None}) | periods,
)
def test_runs_are_the_sums_of_the_rows_of_the_period(
    rows: Rows, question: Question, period: dict[str, int | None]
) -> None:
    question = msgspec.structs.replace(question, **period)
    with history_of({SERVICE: rows}) as history:
        found = history.runs(question)
    wanted = asked(rows, question)
    columns = ("attempts_started", "attempts_done", "failed", "busy_us", "wasted_us")
    expected = expected_rows(
        found, wanted, "window_start", question, columns, ("busy_us", "attempts_started")
    )
    assert shown(found.rows, "started", "done", "failed", "busy_us", "wasted_us") == expected
    assert [(r.rank, r.at) for r in found.rows] == list(expected)
    assert len({r.at for r in found.rows}) <= question.points + 1
    if question.since is None:
        assert sum(r.started for r in found.rows) == sum(e["attempts_started"] for e in wanted)


@settings(max_examples=examples(300))
@given(
    rows=tables_of(
        LATENCY_HIST,
        {
            "hour": at_minutes(60),
            "queue": queues,
            "name": names,
            "fairness_key": keys,
            "measure": st.sampled_from(["pickup", "run"]),
            "bucket": st.integers(0, 900),
            "n": st.integers(1, 5000),
            "max_us": counts,
        },
    ),
    question=questions(by=st.sampled_from(["queue", "name"])),
)
def test_percentiles_of_waits_are_by_nearest_rank_over_the_merged_buckets(
    rows: Rows, question: Question
) -> None:
    with history_of({LATENCY_HIST: rows}) as history:
        found = history.waits(question)
    wanted = [each for each in rows if each["measure"] == "pickup" and each["fairness_key"] == "*"]
    assert shown(found.rows, "n") == expected_rows(found, wanted, "hour", question, ("n",), ("n",))
    for result, inside in rows_by_result(found, wanted, "hour", question):
        merged: dict[int, list[int]] = {}
        for each in inside:
            known = merged.setdefault(each["bucket"], [0, 0])
            merged[each["bucket"]] = [known[0] + each["n"], max(known[1], each["max_us"])]
        for per_mille, value in ((500, result.p50_us), (900, result.p90_us), (990, result.p99_us)):
            assert value == pytest.approx(percentile(merged, per_mille), rel=1e-9)
        assert result.max_us == max(most for _, most in merged.values())


seconds = st.none() | st.integers(-100, 100_000)


@settings(max_examples=examples(300))
@given(
    rows=st.lists(
        st.builds(
            attempt,
            finished_at=at_minutes().map(lambda end: end + timedelta(microseconds=7)),
            started_at=seconds,
            ready_at=seconds,
            run_at=seconds,
            submitted_at=st.integers(-100, 100_000),
            queue=queues,
            name=names,
            fairness_key=keys,
            attempt=st.integers(1, 2),
            outcome=st.sampled_from(["done", "retried", "lost"]),
            weight=st.sampled_from([1.0, -1.0]),
        ),
        max_size=30,
    ),
    question=questions(
        by=parts, measure=st.sampled_from(["pickup", "run", "e2e", "retry_delay"]), tenants=scopes
    ),
)
def test_waits_of_tenants_are_exact_percentiles_of_their_sound_attempts(
    rows: Rows, question: Question
) -> None:
    assume(question.by == "tenant" or question.tenants is not None)
    with history_of({ATTEMPTS: rows}) as history:
        found = history.waits(question)
    of = {"pickup": ("ready_at", "started_at"), "run": ("started_at", "finished_at")}
    of |= {"e2e": ("submitted_at", "finished_at"), "retry_delay": ("run_at", "started_at")}
    begin, end = of[question.measure]
    wanted = [
        each | {"n": 1, "us": max(0, micros(each[end]) - micros(each[begin]))}
        for each in asked(rows, question)
        if each[begin]
        and each[end]
        and each["weight"] > 0
        and (each["started_at"] is None or each["started_at"] <= each["finished_at"])
        and (question.measure != "e2e" or each["next_state"] == "DONE")
        and (question.measure != "retry_delay" or each["attempt"] > 1)
        and each["fairness_key"] != "*"
    ]
    expected = expected_rows(found, wanted, "finished_at", question, ("n",), ("n",))
    assert shown(found.rows, "n") == expected
    for result, inside in rows_by_result(found, wanted, "finished_at", question):
        us = sorted(each["us"] for each in inside)
        ranks = (result.p50_us, 500), (result.p90_us, 900), (result.p99_us, 990)
        assert [value for value, _ in ranks] == [us[-(-len(us) * m // 1000) - 1] for _, m in ranks]
        assert result.max_us == us[-1]


def rows_by_result(
    found: HistoryRows[Any], wanted: Rows, instant: str, question: Question
) -> Iterator[tuple[Any, Rows]]:
    """Yield each result with the rows of its part and step."""
    rank_of = {each.part: each.rank for each in found.rows}
    part_of, step = part_in(question.by), found.step_s * 1_000_000
    for result in found.rows:
        yield (
            result,
            [
                each
                for each in wanted
                if rank_of.get(part_of(each), question.top + 1) == result.rank
                and result.at <= micros(each[instant]) < result.at + step
            ],
        )


def percentile(buckets: Mapping[int, Sequence[int]], per_mille: int) -> float:
    """Return the least value of the buckets that reach the rank."""
    total, up_to, reached = sum(n for n, _ in buckets.values()), 0, []
    for bucket in sorted(buckets):
        n, most = buckets[bucket]
        up_to += n
        if up_to * 1000 >= total * per_mille:
            reached.append(min(2 / (GROWTH + 1) * GROWTH**bucket, most))
    return min(reached)


@settings(max_examples=examples(300))
@given(
    rows=tables_of(
        TENANT_SHARE,
        {
            "window_start": at_minutes(60 * 24),
            "window_s": st.sampled_from([60, 3600, 86_400]),
            "queue": queues,
            "fairness_key": keys,
            "starved": st.booleans(),
            **dict.fromkeys(("busy_us", "entitled_us", "demand_us", "claimed", "lag_us"), counts),
        },
    ),
    question=questions(
        by=st.just("tenant"),
        until=st.integers(1, 3).map(lambda days: FIRST + days * DAY_US),
        tenants=scopes,
    ),
)
def test_shares_add_up_the_windows_of_one_size(rows: Rows, question: Question) -> None:
    with history_of({TENANT_SHARE: rows}) as history:
        found = history.shares(question)
    window_s = max(
        size
        for size in (60, 3600, 86_400)
        if found.step_s % size == 0 and found.since % (size * 1_000_000) == 0
    )
    wanted = [each for each in asked(rows, question) if each["window_s"] == window_s]
    columns = ("busy_us", "entitled_us", "demand_us", "claimed")
    expected = expected_rows(found, wanted, "window_start", question, columns, columns[:2])
    assert shown(found.rows, *columns) == expected


@settings(max_examples=examples(200))
@given(
    rows=tables_of(
        COST,
        {
            "day": at_minutes(60 * 24),
            "queue": queues,
            "fairness_key": keys,
            "amount": st.integers(0, 10**12).map(lambda n: Decimal(n) / 1_000_000),
            **dict.fromkeys(("busy_us", "wasted_us", "idle_allocated_us"), counts),
        },
    ),
    question=questions(by=st.just("tenant"), tenants=scopes),
)
def test_costs_add_up_to_the_bill(rows: Rows, question: Question) -> None:
    with history_of({COST: rows}) as history:
        found = history.costs(question)
    of_all = question.tenants is None
    wanted = [each for each in asked(rows, question) if of_all or each["fairness_key"] != "*"]
    columns = ("amount", "busy_us", "wasted_us", "idle_allocated_us")
    expected = expected_rows(found, wanted, "day", question, columns, ("amount", "busy_us"))
    assert shown(found.rows, "amount", "busy_us", "wasted_us", "idle_us") == expected


def incident(kind: str, subject: str, hour: int, hours: int = 1) -> dict[str, Any]:
    return row(
        INCIDENTS,
        incident_id=f"{kind}-{subject}-{hour}",
        kind=kind,
        queue="q",
        subject=subject,
        start_at=START + timedelta(hours=hour),
        end_at=START + timedelta(hours=hour + hours),
        keys_hit=3,
    )


def test_incidents_overlap_the_period_and_are_the_latest_first(
    lake: Warehouse, history: History
) -> None:
    made = [
        incident("stall", "*", 0, 40),
        incident("flood", "acme/7", 30),
        incident("stall", "*", 50),
    ]
    put(lake, INCIDENTS, made)
    found = history.incidents(Question(since=FIRST + 35 * HOUR_US, until=FIRST + 50 * HOUR_US))
    assert [each.id for each in found.rows] == ["stall-*-0"]
    found = history.incidents(Question(since=FIRST, until=FIRST + 60 * HOUR_US))
    assert [each.id for each in found.rows] == ["stall-*-50", "flood-acme/7-30", "stall-*-0"]
    assert found.rows[0].keys_hit == 3


def test_a_reader_of_one_tenant_sees_no_incident_of_others_and_no_number_about_all(
    lake: Warehouse,
    history: History,
) -> None:
    put(
        lake,
        INCIDENTS,
        [
            incident("flood", "acme/7", 1),
            incident("flood", "beta", 2),
            incident("starved", "acme", 3),
            incident("node loss", "acme", 4),  # a node of this name
            incident("stall", "*", 5),
            incident("flood", "*", 6),
        ],
    )
    found = history.incidents(
        Question(since=FIRST, until=FIRST + DAY_US, tenants=frozenset({"acme"}))
    )
    assert [each.id for each in found.rows] == ["starved-acme-3", "flood-acme/7-1"]
    assert {(e.keys_hit, e.tasks_delayed, e.extra_wait_us) for e in found.rows} == {(None,) * 3}
    for nobody in ({"*"}, set[str]()):
        asked = Question(since=FIRST, until=FIRST + DAY_US, tenants=frozenset(nobody))
        assert history.incidents(asked).rows == []


def test_fairness_has_the_worst_of_each_step_and_is_for_readers_of_all_tenants_only(
    lake: Warehouse,
    history: History,
) -> None:
    put(
        lake,
        FAIRNESS,
        [
            row(
                FAIRNESS,
                window_start=START + timedelta(minutes=minute),
                window_s=60,
                queue="q",
                jain=jain,
                n_keys=2,
                max_lag_us=lag,
                max_lag_key=key,
                starved_keys=starved,
            )
            for minute, jain, lag, key, starved in (
                (0, 0.5, 10, "a", 0),
                (1, None, 30, "b", 2),
                (4, 1.0, 20, "c", 1),
            )
        ],
    )
    found = history.fairness(Question(since=FIRST, until=FIRST + 5 * MINUTE_US, points=1))
    (only,) = found.rows
    assert (only.jain, only.jain_least, only.lag_us, only.lag_key) == (0.75, 0.5, 30, "b")
    assert (only.keys, only.starved_keys, only.noisy_key) == (2, 2, None)
    scoped = history.fairness(
        Question(since=FIRST, until=FIRST + HOUR_US, tenants=frozenset({"a", "b"}))
    )
    assert scoped.rows == [] and "all tenants" in scoped.note


def test_top_tenants_join_runs_waits_shares_and_costs(lake: Warehouse, history: History) -> None:
    tenants = ("acme/1", "acme/2", "b")
    for table, fields in (
        (SERVICE, {"window_start": START}),
        (COST, {"day": START.replace(hour=0)}),
    ):
        put(lake, table, [row(table, fairness_key=k, **fields) for k in tenants])
    waited = START + timedelta(seconds=1)
    runs = [attempt(fairness_key=k, submitted_at=START, started_at=waited) for k in tenants]
    put(lake, ATTEMPTS, runs)
    found = history.top_tenants(Question())
    assert [(t.tenant, t.started, t.amount) for t in found.rows] == [("acme", 2, 2), ("b", 1, 1)]
    assert found.rows[0].wait_p50_us == 1_000_000
    assert found.rows[0].entitled_us is None and "gold.tenant_share" in found.note
    only = history.top_tenants(Question(tenants=frozenset({"b"})))
    assert [t.tenant for t in only.rows] == ["b"]


def test_an_empty_table_and_one_that_was_never_made_have_no_rows(
    lake: Warehouse, history: History
) -> None:
    put(lake, SERVICE, [])
    assert history.extent() is None
    assert history.runs(Question()).rows == [] and history.runs(Question()).note == ""
    never = history.costs(Question())
    assert never.rows == [] and "fairlead pipeline build" in never.note
    assert never.as_of.built_at is None


def test_a_later_build_is_seen_at_once_and_a_replaced_file_is_read_again(
    lake: Warehouse, history: History
) -> None:
    put(lake, SERVICE, [row(SERVICE, window_start=START)], name="first")
    assert [r.started for r in history.runs(Question()).rows] == [1]
    put(lake, SERVICE, [row(SERVICE, window_start=START, name="y")], name="second")
    assert [r.started for r in history.runs(Question()).rows] == [2]
    builds = Builds(lake)
    before, seen = builds.newest()
    state = lake.table(SERVICE).state()
    assert state.snapshot is not None and state.stored is not None
    build = before.after({SERVICE.name: state.snapshot})
    assert builds.publish(msgspec.structs.replace(build, until=FIRST), seen, FIRST)
    written_at = state.stored.metadata.last_updated_ms * 1000
    assert history.as_of() == AsOf(written_at, FIRST)

    # Between the look at the lake and the read, another process erases a key with its files.
    look = history._present

    def erase_once(table: Table) -> Any:
        found = look(table)
        history._present = look  # type: ignore[method-assign]
        erase(lake, "gone", SYSTEM_CLOCK)
        return found

    put(lake, SERVICE, [row(SERVICE, window_start=START, fairness_key="gone")])
    before, seen = builds.newest()
    state = lake.table(SERVICE).state()
    assert state.snapshot is not None
    assert builds.publish(before.after({SERVICE.name: state.snapshot}), seen, FIRST)
    question = Question(points=1)
    steps = history._steps(question, 60)
    history._present = erase_once  # type: ignore[method-assign]
    found = history._read("runs", SERVICE, steps, Runs, question)
    assert [r.started for r in found.rows] == [2]


def test_the_history_of_a_lake_on_an_object_store(s3_lake: str, postgres_url: str) -> None:
    lake = Warehouse(Location.of(s3_lake, postgres_url))
    put(lake, SERVICE, [row(SERVICE, window_start=START)])
    history = History(s3_lake, postgres_url)
    assert [r.started for r in history.runs(Question()).rows] == [1]
    put(lake, SERVICE, [row(SERVICE, window_start=START + timedelta(hours=30))])
    assert sum(r.started for r in history.runs(Question()).rows) == 2
    assert history.extent() == Extent(FIRST, FIRST + 31 * HOUR_US)


def test_a_damaged_file_is_a_broken_lake(lake: Warehouse, history: History) -> None:
    put(lake, SERVICE, [row(SERVICE, window_start=START)])
    for file in lake.table(SERVICE).files():
        Path(file_name(file.path)).write_bytes(b"PAR1 no more PAR1")
    with pytest.raises(BrokenLake, match="pipeline check"):
        history.runs(Question())


def test_values_out_of_range_are_refused_with_the_range(lake: Warehouse, history: History) -> None:
    put(lake, SERVICE, [row(SERVICE, window_start=START)])
    for wrong in (
        lambda: history.runs(Question(since=5, until=5)),
        lambda: history.runs(Question(since=-1, until=5)),
        lambda: history.runs(Question(since=0, until=1 << 62)),
        lambda: history.runs(Question(top=0)),
        lambda: history.runs(Question(top=51)),
        lambda: history.runs(Question(points=201)),
        lambda: history.runs(Question(by="fairness_key")),  # type: ignore[arg-type]
        lambda: history.waits(Question(measure="x")),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigurationError, match="use "):
            wrong()
