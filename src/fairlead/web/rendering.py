"""The environment of the templates: escapes every value, makes control characters visible, and
formats numbers and times."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from fairlead import charts
from fairlead.clock import MICROS, to_datetime
from fairlead.core.visible import LINES, visible
from fairlead.operate.doctor.finding import counted

NOTHING = "\N{EN DASH}"
"""Cell of a value that is not there."""
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def environment() -> Environment:
    """Return the environment of all templates."""
    found = Environment(
        loader=PackageLoader("fairlead.web"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    found.filters.update(
        count=count,
        described=described,
        duration=duration,
        exact=exact,
        iso=iso,
        percent=percent,
        plural=counted,
        when=when,
    )
    found.globals.update(charts=charts)
    return found


def _finalize(value: Any) -> Any:
    """Write control characters of texts as escapes; leave markup, which the templates wrote."""
    return visible(value, keep=LINES) if type(value) is str else value


def exact(value: Any) -> Markup:
    """Return a value of a form as it is sent back: escaped, with its control characters as they
    are, so that a form names the queue or key that it stands beside, and no other."""
    return escape(value)


def count(number: int | None) -> str:
    """Return a number with separators."""
    return NOTHING if number is None else f"{number:,}"


def described(details: str | None) -> str | None:
    """Return the values of a change, which the audit log keeps as JSON, as `priority 3`; another
    text as it is."""
    try:
        values = msgspec.json.decode(details or "", type=dict[str, int | float | str])
    except msgspec.MsgspecError:
        return details
    shown = {
        name: when(int(value)) if name == "run_at" else value for name, value in values.items()
    }
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())


def percent(share: float | None) -> str:
    """Return a share (0 to 1) as a percentage."""
    return NOTHING if share is None else f"{share * 100:.1f} %"


def duration(seconds: float | timedelta | None) -> str:
    """Return a time span with its two largest units, such as `3 h 5 min` or `250 ms`."""
    if seconds is None:
        return NOTHING
    value = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
    sign, value = ("-", -value) if value < 0 else ("", value)
    if value < 1:
        return f"{sign}{value * 1000:.0f} ms"
    if value < 10:
        return f"{sign}{value:.1f} s"
    left = round(value)
    found: list[str] = []
    for size, unit in _UNITS:
        if left >= size and len(found) < 2:
            found.append(f"{left // size} {unit}")
            left %= size
        elif found:
            break
    return sign + " ".join(found)


def iso(micros: int) -> str:
    """Return an instant (microseconds since the epoch) for the attribute `datetime`."""
    return to_datetime(micros).isoformat().replace("+00:00", "Z")


def when(micros: int) -> str:
    """Return an instant (microseconds since the epoch) as text in UTC, to the second."""
    return to_datetime(micros // MICROS * MICROS).strftime("%Y-%m-%d %H:%M:%S UTC")
