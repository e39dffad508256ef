"""Numbers as text for people: durations in a fitting unit, counts with commas, instants in UTC
without a zone."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from math import floor, log10

from fairlead.clock import MICROS
from fairlead.pipeline.windows import ALL

_UNITS = (
    ("d", 86_400 * MICROS),
    ("h", 3600 * MICROS),
    ("min", 60 * MICROS),
    ("s", MICROS),
    ("ms", 1000),
    ("µs", 1),
)
LONGEST_NAME = 40
"""Longest key or name in a table, in characters."""


def duration(us: float, days: bool = True) -> str:
    """Return microseconds with three digits in the largest unit in which they are at least 1:
    850 µs, 3.42 s, 12.1 min, 2.5 d."""
    for name, size in _UNITS:
        if abs(us) >= size and (days or name != "d"):
            return f"{ratio(us / size)} {name}"
    return f"{ratio(us)} µs" if us else "0"


def work(us: float) -> str:
    """Return worker time in hours at most, because a day of a worker is not a day of the clock:
    1,234 h."""
    return duration(us, days=False)


def count(number: float) -> str:
    """Return an integer with commas: 1,234,567."""
    return f"{number:,.0f}"


def percent(part: float) -> str:
    """Return a percentage, 12.3 %, with enough digits to distinguish 0.04 % from none and 99.97 %
    from all."""
    value = 100 * part
    if value in (0, 100):
        return f"{value:.0f} %"
    to_an_end = min(abs(value), abs(100 - value))
    places = 1 if to_an_end >= 0.1 else -floor(log10(to_an_end))
    return f"{value:.{places}f} %"


def budget(left: float) -> str:
    """Return what is left of an error budget, 30.0 % left, or how often it is spent: 93.4 times
    spent."""
    return f"{percent(left)} left" if left >= 0 else f"{ratio(1 - left)} times spent"


def amount(value: Decimal) -> str:
    """Return an amount of money in the currency of the bill: 1,234.50."""
    return f"{value:,.2f}"


def instant(at: datetime) -> str:
    """Return an instant to the minute: 2026-03-02 10:05."""
    return f"{at:%Y-%m-%d %H:%M}"


def shortened(text: str, longest: int = LONGEST_NAME) -> str:
    """Return the text with at most this many characters: head and tail, because keys with the same
    beginning differ at the end. A dot replaces each unprintable character and line end."""
    plain = "".join(letter if letter.isprintable() else "·" for letter in text)
    if len(plain) <= longest:
        return plain
    tail = longest // 3
    return f"{plain[: longest - tail - 1]}…{plain[-tail:]}"


def key_name(key: str, longest: int = LONGEST_NAME) -> str:
    """Return a fairness key for people. The key ALL of a bill stands for paid time without runs."""
    return {"": "(no key)", ALL: "(idle workers)"}.get(key) or shortened(key, longest)


def ratio(value: float) -> str:
    """Return three significant digits, without an exponent or trailing zeros: 0.987, 1.25, 14.4;
    < 0.001 for less."""
    size = abs(value)
    if 0 < value < 0.0005:
        return "< 0.001"
    places = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if places else text
