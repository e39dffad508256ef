"""The gate for text that is shown: characters that a terminal, a log or a page would obey become
visible instead.

Sources: ECMA-48 (control functions); Unicode Standard Annex 9 (marks that turn the direction of
text); Unicode Technical Report 36, section 3.
"""

from __future__ import annotations

import re

_OBEYED = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0 and C1: escape sequences, carriage returns, tones
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks and overrides of direction
    "\u2028\u2029"  # separators of lines and paragraphs
    "\ud800-\udfff]"  # halves of pairs, which no encoding can write
)

LINES = "\n\t"
"""Characters to keep in text of several lines."""


def visible(text: str, keep: str = "") -> str:
    r"""Return text with its control characters written as escapes, such as `\x1b`, except those
    in `keep`."""
    return _OBEYED.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
