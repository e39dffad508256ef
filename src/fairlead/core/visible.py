"""The gate for text that is shown: characters that a terminal, a log or a page would obey become
visible instead.

Sources: ECMA-48 (control functions); Unicode Standard Annex 9 (marks that turn the direction of
text); Unicode Technical Report 36, section 3.
"""

from __future__ import annotations

import hashlib
import re

LONGEST_LABEL = 200
"""Maximum characters of a label."""

_OBEYED = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0 and C1: escape sequences, carriage returns, tones
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks and overrides of direction
    "\u2028\u2029"  # separators of lines and paragraphs
    "\ud800-\udfff]"  # halves of pairs, which no encoding can write
)

LINES = "\n\t"
"""Characters to keep in text of several lines."""

_DIGEST = re.compile("~[0-9a-f]{12}$")
"""End of the label of a text that was changed."""


def visible(text: str, keep: str = "") -> str:
    r"""Return text with its control characters written as escapes, such as `\x1b`, except those
    in `keep`."""
    return _OBEYED.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), text)


def label(text: str) -> str:
    """Return text as one visible line of at most LONGEST_LABEL characters. Changed text ends with a
    digest of the original, so that different texts have different labels."""
    shown = visible(text)
    if shown == text and len(text) <= LONGEST_LABEL and not _DIGEST.search(text):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]
    return f"{shown[: LONGEST_LABEL - len(digest) - 1]}~{digest}"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
