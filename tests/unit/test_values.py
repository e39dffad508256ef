"""Every value that a person or a program gives is taken, or refused with an error of Fairlead; a
task that was taken can run."""

import asyncio
import math
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead import App, Fixed, Limit
from fairlead.cli.output import duration
from fairlead.core.values import brief, instant, one_of
from fairlead.errors import FairleadError, InvalidTask
from fairlead.model import State
from fairlead.testing import drain


class Text(str):
    """A class of texts, as template engines have one."""

    __slots__ = ()


class Color(StrEnum):
    RED = "red"


def _generated(*_: object) -> Iterator[int]:
    yield 1


NASTY: list[Any] = [
    None,
    True,
    0,
    -1,
    5,
    1.5,
    2**31,
    2**63,
    -(2**63) - 1,
    10**400,
    math.nan,
    math.inf,
    -math.inf,
    1e308,
    5e-324,
    "",
    " ",
    "4",
    "a\0b",
    "\ud800",
    "x" * 5000,
    "é",
    b"bytes",
    [],
    ["a"],
    {},
    {"a": "b"},
    {"a": 1},
    {1: "a"},
    {"a": "x" * 2_000_000},
    {"\ud800": "a"},
    object(),
    Exception,
    Fixed,
    Limit,
    timedelta(seconds=-1),
    timedelta.max,
    date(2026, 1, 1),
    datetime(2026, 1, 1),
    datetime.max.replace(tzinfo=UTC),
    datetime.min.replace(tzinfo=UTC),
    Text("of another class"),
    Color.RED,
    Decimal("sNaN"),
    Fraction(1, 3),
    1j,
    range(3),
    (1, None),
    {"a", ()},
    [None],
    [{"amount": "x"}],
    {"a": None},
    ...,
    _generated,
    iter([1]),
    memoryview(b"a"),
    "*/90 * * * *",
    "sqlite:///",
    "postgresql://[",
]
"""Odd values that were chosen by hand."""

anything = st.one_of(
    st.sampled_from(NASTY),
    st.integers(),
    st.floats(),
    st.text(alphabet=st.characters(codec=None), max_size=20),
    st.booleans(),
    st.binary(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.datetimes(),
)
nested = st.recursive(
    anything,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from(["amount", "more", 1]), inner, max_size=3)
    ),
    max_leaves=4,
)


def raw_errors(call: Callable[[Any], Any]) -> list[str]:
    """Return the odd values, chosen by hand or drawn at random, for which a call raises another error
    than one of Fairlead."""
    found = []

    def attempt(value: Any) -> None:
        try:
            taken(lambda: call(value))
        except Exception as error:
            found.append(f"{brief(value)}: {error!r}")

    for value in NASTY:
        attempt(value)
    settings(max_examples=12, deadline=None, database=None)(given(nested)(attempt))()
    return found


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[App]:
    app = App(f"sqlite:///{tmp_path / 'shop.db'}")
    app.migrate()
    yield app
    app.close()


def taken(call: Callable[[], Any]) -> bool:
    """Return whether a call succeeds; it fails with an error of Fairlead, on one line, only."""
    try:
        call()
    except FairleadError as error:
        assert len(str(error)) < 1000
        assert str(error).isprintable()
        return False
    return True


@given(st.text(max_size=30))
def test_a_duration_is_taken_or_refused(text: str) -> None:
    for given_text in (text, f"{text}d", f"{len(text)}{text}h"):
        taken(lambda given_text=given_text: duration(given_text))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_cannot_express_is_refused_at_the_submit(
    shop: App, value: float
) -> None:
    @shop.task
    async def pay(amount: float = 0.0, more: dict[str, Any] | None = None) -> None: ...

    with pytest.raises(InvalidTask, match="^task 'pay': JSON has no NaN or infinity"):
        pay.submit(value)
    with pytest.raises(InvalidTask, match="JSON has no NaN or infinity"):
        pay.submit(more={"a": [1.0, {"b": value}]})
    pay.submit(1.0, more={"a": None, "null": "null"})
    assert asyncio.run(drain(shop)) is None


@pytest.mark.parametrize(
    "text",
    ["0001-01-01T00:00+05:00", "9999-12-31T23:59-14:00", "1970-01-01T00:00+01:00", "9999-01-01"]
    + ["10000-01-01", "2026-01-31T09:00+99:00", "2026-13-01", "monday", "", "9" * 1000],
)
def test_an_instant_that_no_table_can_have_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InvalidTask, match=r"^since '.*: use an instant in the years 1970") as found:
        instant("since", text, InvalidTask)
    assert "\n" not in str(found.value) and len(str(found.value)) < 250


def test_an_instant_is_in_utc() -> None:
    assert instant("since", "1970-01-01") == datetime(1970, 1, 1, tzinfo=UTC)
    assert instant("since", "2026-11-08T00:30+02:00") == datetime(2026, 11, 7, 22, 30, tzinfo=UTC)
    assert instant("since", "9998-12-31T23:59:59Z").year == 9998


def test_an_unknown_choice_is_answered_by_the_names_of_the_others() -> None:
    with pytest.raises(InvalidTask, match="^state 'gone' is unknown; use 'DONE' or 'ERROR'$"):
        one_of("state", "gone", State.DONE, State.ERROR, error=InvalidTask)
