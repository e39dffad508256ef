"""The report is one self-contained page with the numbers of the tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from html.parser import HTMLParser
from math import ceil, log
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fairlead.clock import Clock, to_micros
from fairlead.errors import ConfigurationError
from fairlead.pipeline.chart_steps import MOST_POINTS
from fairlead.pipeline.jobs.report import report
from fairlead.pipeline.models import (
    ATTEMPTS,
    COST,
    FAILURES,
    FAIRNESS,
    LATENCY_HIST,
    QUARANTINE,
    SERVICE,
    SLO,
    TENANT_SHARE,
)
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.reading.snapshots import Snapshots
from fairlead.pipeline.report.data import (
    HIDDEN,
    ReportData,
    Selection,
    gather,
    hashed_key,
    period,
    with_hashed_keys,
)
from fairlead.pipeline.report.page import render
from fairlead.pipeline.runs import Check, last_runs, recorded
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.frames import T0, at, attempt
from tests.pipeline.tables_by_hand import put, row

NOW = to_micros(T0) + 3 * 3600 * 1_000_000
MINUTE = 60_000_000
EVIL = "<script>alert(1)</script>"
LONG = "x" * 5000 + "-the-end"
STARVING = "starving$key_"
SECRET_TEXT = f"no account for {EVIL} & co"


class StandingClock:
    """A clock that stands still at three hours after T0."""

    def now(self) -> int:
        return NOW

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError


def rows(names: str, *values: tuple[Any, ...], **same: Any) -> list[dict[str, Any]]:
    """Return rows with these values of the named columns, and the same values of others."""
    return [
        {"queue": "q", **same, **dict(zip(names.split(), each, strict=True))} for each in values
    ]


ROWS: Mapping[Table, list[dict[str, Any]]] = {
    SERVICE: rows(
        "window_start fairness_key busy_us wasted_us",
        (T0, EVIL, 30 * MINUTE, 3 * MINUTE),
        (T0, "b", 10 * MINUTE, MINUTE),
        (at(61 * 60), EVIL, 20 * MINUTE, 2 * MINUTE),
        window_s=60,
        name="pay",
        attempts_started=10,
        attempts_done=8,
        failed=2,
    ),
    TENANT_SHARE: rows(
        "window_start window_s fairness_key busy_us entitled_us lag_us",
        (T0, 60, EVIL, 30 * MINUTE, 20 * MINUTE, -10 * MINUTE),
        (T0, 60, "b", 10 * MINUTE, 10 * MINUTE, 0),
        (T0, 60, LONG, 5 * MINUTE, 5 * MINUTE, 0),
        (T0, 60, "d", 4 * MINUTE, 4 * MINUTE, 0),
        (at(60), 60, STARVING, 0, 5 * MINUTE, 5 * MINUTE),
        (T0, 3600, EVIL, 30 * MINUTE, 20 * MINUTE, -10 * MINUTE),
        (at(3600), 3600, EVIL, 20 * MINUTE, 20 * MINUTE, 0),
    ),
    FAIRNESS: rows(
        "window_start jain bound_ok starved_keys",
        (T0, 0.5, False, 0),
        (at(60), 1.0, True, 3),
        (at(120), None, None, 0),
        window_s=60,
        n_keys=2,
        max_lag_us=5 * MINUTE,
        max_lag_key=STARVING,
    ),
    LATENCY_HIST: [
        row | {"bucket": ceil(log(row["max_us"]) / log(1.02))}
        for row in rows(
            "name measure max_us n",
            ("quick", "pickup", 1000, 980),
            ("slow", "pickup", 2_000_000, 20),
            ("quick", "run", 50_000, 980),
            ("slow", "run", 9_000_000, 20),
            hour=T0,
            fairness_key="*",
        )
    ],
    SLO: [
        {"window_start": at(60 * minute), "budget_left": left, "state": state}
        | {"slo_id": "fast", "good": 90, "bad": 10, "objective": 0.99}
        for minute, left, state in ((0, 0.8, "ok"), (5, 0.4, "page"), (10, 0.3, "ticket"))
    ],
    FAILURES: rows(
        "hour error_type error_fp n wasted_us storm",
        (T0, "TimeoutError", 1, 150, 150 * MINUTE, True),
        (T0, "KeyError", 2, 3, 3 * MINUTE, False),
        (at(3600), "KeyError", 2, 4, 4 * MINUTE, False),
        name="pay",
        error_text=SECRET_TEXT,
    ),
    COST: rows(
        "fairness_key busy_us amount",
        (EVIL, 50 * MINUTE, Decimal("0.333334")),
        ("b", 10 * MINUTE, Decimal("0.333333")),
        (STARVING, 0, Decimal("0.333333")),
        day=T0.replace(hour=0),
    ),
    QUARANTINE: [
        {"source": "bronze.attempts/s", "reason": "the clock jumped", "seen_at": seen_at}
        for seen_at in (at(5), datetime(9999, 1, 1, tzinfo=UTC))
    ],
    ATTEMPTS: [attempt(finished_at=at(7000)), attempt(finished_at=at(10))],
}


class Job(NamedTuple):
    """A lake and the clock of its jobs."""

    lake: Warehouse
    clock: Clock


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Return a job on a small made-up lake."""
    job = Job(Warehouse(Location.of(tmp_path_factory.mktemp("lake"))), StandingClock())
    for table, rows in ROWS.items():
        put(job.lake, table, [row(table, **fields) for fields in rows])
    with recorded(job.lake, job.clock, "build", {}) as run:
        run.checks = [Check("one", 1, 1), Check("two", 2, 2)]
    return job


@pytest.fixture(scope="module")
def data(job: Job) -> ReportData:
    return gathered(job.lake, Selection(top=3))


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    return gathered(Warehouse(Location.of(tmp_path_factory.mktemp("empty"))))


def gathered(lake: Warehouse, selection: Selection = Selection()) -> ReportData:  # noqa: B008
    with Frames(lake, Snapshots(lake).read()) as tables:
        return gather(tables, NOW, selection)


class Page(HTMLParser):
    """Parsed page: tags that are closed in order, texts, addresses, ids, tables by section."""

    _VOID = ("meta", "br", "hr", "img", "link", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.values: dict[str, list[list[str]]] = {}
        self.sections: dict[str, str] = {}
        self._open: list[str] = []
        self._caption = ""
        self.feed(text)
        self.close()
        assert self._open == [], f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add_tag(tag, dict(attrs))
        if tag not in self._VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add_tag(tag, dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, f"</{tag}> closes {self._open[-3:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if "style" in self._open or not data.strip():
            return
        self.texts.append(data)
        if self._open[-1] == "summary":
            self._caption = list(self.sections)[-1] if data == "Numbers" else data
            self.tables[self._caption], self.values[self._caption] = [], []
        elif "td" in self._open:
            self.tables[self._caption][-1].append(data.strip())
        if self.sections and "section" in self._open:
            self.sections[list(self.sections)[-1]] += data

    def _add_tag(self, tag: str, attributes: dict[str, str | None]) -> None:
        self.tags.add(tag)
        self.ids += [value for name, value in attributes.items() if name == "id" and value]
        self.addresses += [
            str(attributes[name])
            for name in ("href", "src", "xlink:href", "action")
            if name in attributes
        ]
        if tag == "section":
            self.sections[str(attributes["id"])] = ""
        if tag == "tr" and "tbody" in self._open:
            self.tables[self._caption].append([])
            self.values[self._caption].append([])
        if tag == "data":
            self.values[self._caption][-1].append(str(attributes["value"]))


@pytest.fixture(scope="module")
def page(data: ReportData) -> Page:
    return Page(render(data))


PANELS = ("queues", "share", "fairness", "pickup", "objectives", "failures", "cost")


# the page -----------------------------------------------------------------------------------------


def test_the_page_closes_its_tags_in_order_and_uses_no_id_twice(page: Page) -> None:
    assert {"html", "head", "body", "main", "svg", "table"} <= page.tags
    assert len(page.ids) == len(set(page.ids))


def test_the_page_links_only_to_its_own_anchors_and_has_no_script(
    data: ReportData, page: Page
) -> None:
    text = render(data)

    assert "http" not in text and "@import" not in text
    assert page.tags.isdisjoint({"script", "link", "iframe", "object", "img", "form"})
    assert all(address.startswith("#") and address[1:] in page.ids for address in page.addresses)
    assert all(found in page.ids for found in re.findall(r"url\(#([^)]*)\)", text))


def test_the_findings_come_first_and_every_table_is_folded(page: Page) -> None:
    assert list(page.sections) == ["findings", *PANELS, "data"]
    assert set(page.tables) == {*PANELS, "Last run of each job", "Rows in quarantine, by reason"}


def renamed(data: ReportData, key: str) -> ReportData:
    """Return the data with another name for the key EVIL."""
    return data._replace(
        frames={name: frame.replace({EVIL: key}) for name, frame in data.frames.items()}
    )


@pytest.mark.parametrize(
    "key",
    [EVIL, "_hidden", "$x^{$", "\x00\x1b[31m", "租户 😀", 'a" onload="b', "line\nbreak", STARVING],
)
def test_a_hostile_key_is_shown_as_text_in_tables_and_pictures(data: ReportData, key: str) -> None:
    page = Page(render(renamed(data, key)))

    assert len(page.ids) == len(set(page.ids)) and "script" not in page.tags
    shown = "".join(letter if letter.isprintable() else "·" for letter in key)
    assert any(text.strip() == shown for text in page.texts)
    assert any(row[1] == shown for row in page.tables["share"])


def test_a_very_long_key_is_cut_in_the_middle(data: ReportData) -> None:
    shown = [
        text for text in Page(render(renamed(data, f"x{LONG}"))).texts if text.startswith("xxx")
    ]

    assert shown and all(len(text) <= 60 and "…" in text and "-the-end" in text for text in shown)


def test_tasks_without_a_key_and_idle_workers_have_names_on_the_page(data: ReportData) -> None:
    shown = Page(render(with_hashed_keys(renamed(data, ""))))
    assert shown.tables["cost"][0][0] == "(no key)"
    idle = Page(render(renamed(data, "*")))
    assert idle.tables["cost"][0][0] == "(idle workers)"


def test_numbers_of_a_small_history_are_ones_that_people_read(data: ReportData) -> None:
    shares, objectives = data.frames["share_over_time"], data.frames["objectives"]
    few = shares.assign(value=shares["value"] / 1e5)
    spent = objectives.assign(budget_left=-92.371)
    frames = data.frames | {"share_over_time": few, "objectives": spent}
    page = Page(render(data._replace(frames=frames)))
    assert not re.search(r"\de-\d", page.sections["share"])
    assert "ms a minute" in page.sections["share"]
    assert "Pickup, 99 % of the runs" not in page.sections["pickup"]  # one point is no chart
    assert "fast: error budget 93.4 times spent." in page.sections["findings"]


def test_keys_beyond_the_first_ones_are_counted_and_summed_in_one_row(
    data: ReportData, page: Page
) -> None:
    share = data.frames["share"]
    assert list(share["fairness_key"][:3]) == [EVIL, "b", STARVING]
    rest = share.iloc[3]
    assert (rest["keys"], rest["busy_us"]) == (2, 9 * MINUTE)
    assert share["busy_us"].sum() == sum(
        row["busy_us"] for row in ROWS[TENANT_SHARE] if row["window_s"] == 60
    )
    assert page.tables["share"][3][1] == "2 others"


def test_a_page_of_hashed_keys_shows_no_key_and_no_text_that_may_reveal_one(
    data: ReportData,
) -> None:
    text = render(with_hashed_keys(data))

    page = Page(text)
    assert hashed_key(EVIL) == sha256(EVIL.encode()).hexdigest()[:10]
    assert {hashed_key(EVIL), hashed_key(STARVING), HIDDEN} <= set(page.texts)
    for key in ("alert(1)", "xxxx", "starving", "no account"):
        assert key not in text
    assert [row[0] for row in page.tables["cost"]] == [hashed_key(k) for k in (EVIL, "b", STARVING)]


def test_every_section_of_an_empty_lake_names_the_command_that_builds_its_table(
    empty: ReportData,
) -> None:
    page = Page(render(empty))

    assert "svg" not in page.tags and not page.tables
    for panel in PANELS:
        assert "run `fairlead pipeline build`" in page.sections[panel]
    assert "[[slo]]" in page.sections["objectives"]
    assert "`fairlead pipeline ingest` brings attempts into the lake" in page.sections["findings"]


# the numbers --------------------------------------------------------------------------------------


def test_the_tables_of_the_page_show_the_numbers_of_the_lake(page: Page) -> None:
    share, cost = page.values["share"], page.values["cost"]
    assert [values[1] for values in share] == [str(n * MINUTE) for n in (30, 10, 0, 9)]
    assert page.tables["share"][0][3:7] == ["30 min", "61.2 %", "20 min", "1.5"]
    assert page.tables["share"][2][7:] == ["5 min", "2026-03-02 10:01"]
    assert page.tables["queues"] == [["q", "1 h", "0.5", "30", "6", "20.0 %", "6 min", "10.0 %"]]
    assert cost[0][3] == "0.333334"
    assert [row[:2] for row in page.tables["failures"]] == [
        ["TimeoutError", SECRET_TEXT],
        ["KeyError", SECRET_TEXT],
    ]
    assert [values[:2] for values in page.values["failures"]] == [
        ["150", str(150 * MINUTE)],
        ["7", str(7 * MINUTE)],
    ]
    assert [row[7] for row in page.tables["failures"]] == ["1", "0"]


def test_the_findings_are_sentences_with_the_numbers_of_the_tables(page: Page) -> None:
    found = page.sections["findings"]
    for sentence in (
        "30 runs took 1 h of workers; 20.0 % of them failed, and wasted 10.0 % of that time;"
        " hours with a storm of one error: 1.",
        "99 % of slow in q started within ",
        "q: 3 keys starved in the worst window; starving$key_ was owed most, 5 min.",
        "q was uneven: median Jain index 0.75, 1 is even.",
        "fast: error budget 30.0 % left.",
        f"The cost is 1.00; 33.3 % of it for {EVIL}.",
        "2 rows, 100 % of the attempts, are in quarantine.",
    ):
        assert sentence in found


def test_pickups_of_all_names_are_merged_by_their_histograms(data: ReportData) -> None:
    lines = data.frames["pickup_over_time"].set_index("line")["value"]

    assert lines["50 %"] == pytest.approx(0.001, rel=0.01)
    # 20 of 1000 are slow, so the result is not the mean of two percentiles
    assert lines["99 %"] == pytest.approx(2, rel=0.01)
    names = data.frames["pickup"]
    assert list(names["name"]) == ["slow", "quick"]
    assert names["p99"][1] == pytest.approx(1000, rel=0.01)


def test_the_lines_of_a_picture_are_the_busy_workers_of_each_key(data: ReportData) -> None:
    lines = data.frames["share_over_time"]
    step_us = data.period.step_s * 1_000_000
    busy = (lines["value"] * step_us).groupby(lines["line"]).sum()
    assert busy[EVIL] == pytest.approx(30 * MINUTE) and busy["b"] == pytest.approx(10 * MINUTE)


def test_an_objective_is_shown_with_its_last_state_and_its_time_in_violation(
    data: ReportData,
) -> None:
    (objective,) = data.frames["objectives"].to_dict("records")

    assert (objective["state"], objective["budget_left"], objective["bad"]) == ("ticket", 0.3, 30)
    assert (objective["page_us"], objective["ticket_us"]) == (300_000_000, 300_000_000)


def test_quarantined_rows_and_failed_jobs_are_shown_on_the_page(
    data: ReportData, page: Page
) -> None:
    assert page.tables["Rows in quarantine, by reason"] == [
        ["the clock jumped", "bronze.attempts", "2", "9999-01-01 00:00"]
    ]
    assert page.tables["Last run of each job"][0][4] == "2"
    error = f"bronze.attempts: expected 2, found {EVIL}"
    failed = data.frames["runs"].assign(state="failed", error=error)
    found = Page(render(data._replace(frames=data.frames | {"runs": failed})))
    assert "The last run of the job build failed." in found.sections["findings"]
    assert found.tables["Last run of each job"][0][-1] == error


# the time -----------------------------------------------------------------------------------------


def hours_from(first: datetime, hours: int) -> list[str]:
    return [f"{first + timedelta(hours=n):%Y-%m-%d/%H}" for n in range(hours)]


@pytest.mark.parametrize("hours", [1, 5, 24, 7 * 24, 30 * 24, 400 * 24, 3000 * 24])
def test_no_line_of_a_picture_has_more_points_than_can_be_distinguished(hours: int) -> None:
    when = period(hours_from(T0, hours), NOW, since=T0)

    points = (when.until - when.since) / (when.step_s * 1_000_000)
    assert MOST_POINTS / 10 < points <= MOST_POINTS + 2
    assert when.since <= to_micros(T0)
    assert when.until >= to_micros(T0 + timedelta(hours=hours))
    assert when.step_s % when.window_s == 0


def test_a_report_covers_the_last_seven_days_with_runs() -> None:
    when = period(hours_from(T0, 10 * 24), NOW)

    assert when[:2] == (to_micros(T0 + timedelta(days=3)), to_micros(T0 + timedelta(days=10)))


def test_a_report_covers_no_time_before_the_first_run_or_after_the_last() -> None:
    when = period(hours_from(T0, 2), NOW, T0 - timedelta(days=9), T0 + timedelta(days=9))

    assert when[:2] == (to_micros(T0), to_micros(T0 + timedelta(hours=2)))


def test_a_report_of_an_empty_period_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="give an earlier --since"):
        period(hours_from(T0, 2), NOW, since=T0 + timedelta(days=1))


# the job ------------------------------------------------------------------------------------------


def test_the_job_replaces_the_page_and_keeps_a_record_of_itself(job: Job, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.write_text("the old one")

    run = report(
        job.lake,
        job.clock,
        out,
        Selection(since=T0, until=T0 + timedelta(hours=1), hash_keys=True),
    )

    page = Page(out.read_text())
    assert "2026-03-02 10:00 to 2026-03-02 11:00 UTC" in "".join(page.texts)
    assert EVIL not in page.texts and hashed_key(EVIL) in page.texts
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert run.state == last_runs(job.lake)["report"]["state"] == "done"


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_read(
    job: Job, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="create it first"):
        report(job.lake, job.clock, tmp_path / "nowhere" / "report.html")
