"""Wrong input is refused at the call, with cause and cure, and nothing is written."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead import App, ConfigurationError, InvalidTask, Limit, StoreUnavailable


@pytest.fixture
def app(sqlite_url: str) -> App:
    return App(sqlite_url)


@pytest.fixture
def pay(app: App):
    @app.task
    async def pay(partner: str, amount: int = 1, at: datetime | None = None) -> None: ...

    return pay


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"partner": 3}, "Expected `str`, got `int`"),
        ({"partner": "a", "amount": "3"}, "Expected `int`, got `str`"),
        ({"partner": "a", "amount": 1.5}, "Expected `int`"),
        ({}, "missing required field `partner`"),
        ({"partner": "a", "colour": "red"}, "`colour`; arguments: partner, amount, at"),
        ({"partner": "\ud800"}, "surrogates"),
        ({"partner": object()}, "Expected `str`"),
        ({"partner": "x" * (1 << 20)}, "more than 1,048,576"),
    ],
)
def test_arguments_that_do_not_fit_the_handler_are_refused(
    app: App, pay, arguments: dict[str, object], expected: str
) -> None:
    with pytest.raises(InvalidTask, match=f"'pay'.*{expected}"):
        pay.submit(**arguments)
    assert app.management.find() == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"weight": 0}, "from 0.001 to 1000"),
        ({"weight": -1.0}, "from 0.001 to 1000"),
        ({"weight": float("nan")}, "from 0.001 to 1000"),
        ({"weight": float("inf")}, "from 0.001 to 1000"),
        ({"weight": True}, "from 0.001 to 1000"),
        ({"priority": -1}, "from 0 to 9"),  # refused rather than clamped
        ({"priority": 10}, "from 0 to 9"),
        ({"priority": 1.0}, "from 0 to 9"),
        ({"run_at": datetime(2026, 1, 1)}, "naive datetime"),
        (
            {"run_at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))},
            "use an instant in the years 1 to 9999",
        ),
        ({"run_at": 12345}, "aware datetime"),
        ({"unique_key": ""}, "unique_key is empty"),
        ({"unique_key": "u", "unique_for": 60}, "unique_for 60: use a timedelta above 0"),
        ({"unique_key": "u", "unique_for": timedelta(0)}, "use a timedelta above 0, of at most"),
        ({"unique_for": timedelta(1)}, "unique_for needs a unique_key"),
        ({"unique_while": "running"}, "unique_while 'running': use 'unfinished'"),
        ({"ordering_key": "a\x00b"}, "NUL"),
        ({"fairness_key": None}, "use a string"),
        ({"fairness_key": "k" * 1025}, "more than 1024"),
        ({"fairness_key": "\ud800"}, "not valid Unicode"),
        ({"context": {"a": 1}}, "context.*use a string"),
        ({"tags": "t" * 101}, "tags have 101 characters, more than 100"),
        ({"colour": "red"}, "unknown option"),
    ],
)
def test_options_out_of_bounds_are_refused_rather_than_clamped(
    pay, options: dict[str, object], expected: str
) -> None:
    with pytest.raises(InvalidTask, match=expected):
        pay.options(**options)


@pytest.mark.parametrize("seconds", ["5", math.nan, math.inf, 0, -1, True, 1e300])
@pytest.mark.parametrize("field", ["timeout", "max_stuck"])
def test_a_processing_policy_with_impossible_times_is_refused(
    app: App, field: str, seconds: Any
) -> None:
    policy = SimpleNamespace(**{"timeout": None, "max_stuck": None, field: seconds})
    with pytest.raises(ConfigurationError, match=f"'work': {field} of its processing .*"):

        @app.task(processing=policy)
        async def work() -> None: ...


def test_a_generator_is_refused_as_a_handler_because_it_would_never_run(app: App) -> None:
    with pytest.raises(ConfigurationError, match="'lazy': a function with `yield` never runs"):

        @app.task
        def lazy() -> Iterator[int]:
            yield 1

    with pytest.raises(ConfigurationError, match="'lazy': a function with `yield` never runs"):

        @app.task
        async def lazy() -> AsyncIterator[int]:
            yield 1


def test_declarations_that_cannot_work_are_refused(app: App, pay) -> None:
    with pytest.raises(ConfigurationError, match="registered already"):
        app.task(name="pay")(lambda: None)
    with pytest.raises(ConfigurationError, match=r"\*\*kwargs has no type"):

        @app.task
        def anything(**kwargs: object) -> None: ...

    with pytest.raises(ConfigurationError, match="cannot be encoded as JSON"):

        @app.task
        def connection(c: sqlite3.Connection) -> None: ...

    with pytest.raises(ConfigurationError, match="takes a parameter named `connection`"):

        @app.task(transactional=True)
        def effect() -> None: ...

    with pytest.raises(ConfigurationError, match="order 'lifo' is unknown"):
        app.queue("last", order="lifo")
    with pytest.raises(ConfigurationError, match="partitions 0: use a whole number from 1 to 1000"):
        app.queue("none", partitions=0)
    with pytest.raises(ConfigurationError, match="Limit n 0: use a whole number from 1"):
        Limit(0)


@pytest.mark.parametrize(
    "quotes", ["'", '"', "'; DROP TABLE fairlead_tasks; --", "\\", "%s $1 ?1", "\u2028", "🦆"]
)
def test_quotes_and_sql_in_texts_are_stored_as_text(store_url: str, quotes: str) -> None:
    app = App(store_url)
    app.migrate()

    @app.task(name=f"name {quotes}", queue=f"queue {quotes}")
    async def pay(text: str) -> None: ...

    handle = pay.options(
        fairness_key=f"fair {quotes}",
        ordering_key=f"order {quotes}",
        unique_key=f"unique {quotes}",
        context={quotes: quotes},
    ).submit(text=quotes)
    pay.submit_many([{"text": quotes}] * 60)
    record = handle.record()
    assert (record.name, record.queue) == (f"name {quotes}", f"queue {quotes}")
    assert (record.fairness_key, record.ordering_key) == (f"fair {quotes}", f"order {quotes}")
    assert len(app.management.find(name=f"name {quotes}", queue=f"queue {quotes}")) == 61
    assert app.management.find(fairness_key=quotes) == []
    app.close()


def test_a_full_disk_refuses_the_submit_and_does_not_damage_the_file(
    tmp_path: Path, monkeypatch
) -> None:
    """Limit the pages of the file instead of the disk, because SQLite raises "database or disk is
    full" for both."""
    url = f"sqlite:///{tmp_path}/tasks.db"
    App(url).management.find()  # creates the file
    app = App(url)

    @app.task
    async def note(text: str) -> None: ...

    from fairlead.backends.sqlite.database import SqliteDatabase

    connect = SqliteDatabase.connect
    bound = [120]

    def small(database: SqliteDatabase) -> sqlite3.Connection:
        connection = connect(database)
        connection.execute(f"PRAGMA max_page_count = {bound[0]}")
        return connection

    monkeypatch.setattr(SqliteDatabase, "connect", small)
    kept = 0
    with pytest.raises(StoreUnavailable, match="full"):
        for n in range(1000):
            note.submit(text=f"{n}" + "".join(chr(65 + (n * i) % 57) for i in range(900)))
            kept += 1
    assert kept > 0
    app.close()
    with sqlite3.connect(tmp_path / "tasks.db") as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert raw.execute("SELECT count(*) FROM fairlead_tasks").fetchone()[0] == kept
    raw.close()
    bound[0] = 100_000
    note.submit(text="there is room again")
    app.close()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"cron": "* * * *"}, "five fields"),
        ({"cron": "61 * * * *"}, "five fields"),
        ({"cron": "*/90 * * * *"}, "the step 90 of the minutes: use at most 60"),
        ({"cron": "0 1-3,*/25 * * *"}, "the step 25 of the hours: use at most 24"),
        ({"cron": "0 0 1/32 * *"}, "the step 32 of the days of the month: use at most 31"),
        ({"cron": "0 0 1 */13 *"}, "the step 13 of the months: use at most 12"),
        ({"cron": "0 0 * * mon-fri/8"}, "the step 8 of the days of the week: use at most 7"),
        ({"timezone": "Europe/Atlantis"}, "timezone"),
        ({"ordering_key": ""}, "ordering_key is empty"),
        ({"catch_up": "some"}, "catch_up 'some' is unknown; use 'last' or 'all' or 'none'"),
    ],
)
def test_impossible_periodic_tasks_are_refused(
    app: App, given: dict[str, str], expected: str
) -> None:
    with pytest.raises(ConfigurationError, match=expected):

        @app.periodic(**({"cron": "* * * * *"} | given))  # type: ignore[arg-type]
        async def tick() -> None: ...


@pytest.mark.parametrize("text", ["\u00b2s", "s", "-1s", "1.5s", "1 s", "1"])
def test_durations_that_cannot_be_read_are_refused(text: str) -> None:
    from fairlead.cli.output import duration
    from fairlead.pipeline.settings import Slo

    with pytest.raises(InvalidTask, match="use a number and"):
        duration(text)
    with pytest.raises(ConfigurationError, match="use a number and"):
        _ = Slo(id="slo", queue="mail", threshold=text, objective=0.9).threshold_us


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("measure = 'retry_delay'", "measure"),
        ("objective = 1.0", "objective"),
        ("objective = 0.0", "objective"),
        ("[cost]\nmethod = 'even'", "method"),
    ],
)
def test_a_wrong_objective_or_method_in_the_settings_of_the_pipeline_is_refused(
    tmp_path: Path, wrong: str, named: str
) -> None:
    from fairlead.pipeline.settings import load

    promise = "[[slo]]\nid = 'soon'\nqueue = 'mail'\nthreshold = '2s'\n"
    path = tmp_path / "pipeline.toml"
    path.write_text(promise + ("" if "objective" in wrong else "objective = 0.9\n") + wrong)
    with pytest.raises(ConfigurationError, match=named):
        load(path)
