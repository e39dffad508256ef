"""Bounded reading of the parameters of a request. An error names the parameter, what it may be, and
the cure; the viewer gets it as a page with status 400."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qsl, unquote

from fairlead.core import values
from fairlead.errors import InvalidTask
from fairlead.operate.operations import DEFAULT_ROWS, MOST_ROWS

MOST_PARAMETERS = 1100
"""Greatest number of parameters of one request: a form of 1,000 selected tasks and its filter."""
MOST_QUERY_BYTES = 8192
MOST_PATH_BYTES = 2048


class BadInput(InvalidTask):
    """Raised for a parameter that a screen cannot use."""


class Inputs:
    """Parameters of a query or a form. Each method raises BadInput for a value out of its range."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            self._values.setdefault(name, []).append(value)

    @classmethod
    def parse(cls, encoded: bytes) -> Inputs:
        """Return the parameters of a query or of the body of a form. Raise BadInput for more than
        MOST_PARAMETERS, and for bytes that are not UTF-8."""
        try:
            text = encoded.decode("ascii")
            pairs = parse_qsl(
                text, keep_blank_values=True, errors="strict", max_num_fields=MOST_PARAMETERS
            )
        except UnicodeError:
            raise BadInput("the parameters are not UTF-8: use percent-encoded UTF-8") from None
        except ValueError:
            raise BadInput(f"more than {MOST_PARAMETERS} parameters: send fewer") from None
        return cls(pairs)

    def text(self, name: str, most: int = values.MOST_KEY_BYTES) -> str | None:
        """Return a text of at most `most` bytes; None if it is missing or empty."""
        value = self._one(name)
        return None if not value else values.text(name, value, most, error=BadInput)

    def required(self, name: str, most: int = values.MOST_KEY_BYTES) -> str:
        """Return a text that must be there."""
        value = self.text(name, most)
        if value is None:
            raise BadInput(f"{name} is missing: give it a value")
        return value

    def exact(self, name: str, most: int = values.MOST_KEY_BYTES) -> str | None:
        """Return a text, which may be empty; None if it is missing. Keys may be the empty text."""
        value = self._one(name)
        return (
            None
            if value is None
            else values.text(name, value, most, may_be_empty=True, error=BadInput)
        )

    def whole(self, name: str, low: int, high: int, default: int) -> int:
        """Return a whole number from `low` to `high`; `default` if it is missing."""
        value = self.text(name, 100)
        if value is None:
            return default
        is_number = value.isascii() and value.removeprefix("-").isdigit() and len(value) < 25
        if not is_number or not low <= int(value) <= high:
            raise BadInput(
                f"{name} {values.brief(value)}: use a whole number from {low:,} to {high:,}"
            )
        return int(value)

    def one_of(self, name: str, choices: Sequence[str], default: str | None = None) -> str | None:
        """Return one of the choices; `default` if it is missing."""
        value = self.text(name, 100)
        if value is None:
            return default
        return values.one_of(name, value, *choices, error=BadInput)

    def flag(self, name: str) -> bool:
        """Return whether a check box is on."""
        return self.one_of(name, ("on", "off", "1", "0"), "off") in ("on", "1")

    def many(self, name: str, most: int = 1000, *, may_be_empty: bool = False) -> list[str]:
        """Return all values of a parameter that may be repeated, at most `most`."""
        found = self._values.get(name, [])
        if len(found) > most:
            raise BadInput(f"{len(found)} times {name}: give it at most {most} times")
        return [
            values.text(name, each, may_be_empty=may_be_empty, error=BadInput) for each in found
        ]

    def rows(self) -> int:
        """Return the number of rows of a page, from the parameter `rows`."""
        return self.whole("rows", 1, MOST_ROWS, DEFAULT_ROWS)

    def pairs(self, *without: str) -> list[tuple[str, str]]:
        """Return all parameters but these, for a link that keeps the filter."""
        return [
            (name, value)
            for name, found in self._values.items()
            if name not in without
            for value in found
        ]

    def _one(self, name: str) -> str | None:
        found = self._values.get(name)
        if found is not None and len(found) > 1:
            raise BadInput(f"{name} is given {len(found)} times: give it once")
        return None if found is None else found[0]


def own_path(given: str) -> str:
    """Return a path of this site; "/" for an address that could lead to another one."""
    path = unquote(given.partition("?")[0])
    is_own = path.startswith("/") and not path.startswith("//") and "/.." not in path
    is_plain = given.isascii() and given.isprintable() and "\\" not in given
    return given if is_own and is_plain else "/"
