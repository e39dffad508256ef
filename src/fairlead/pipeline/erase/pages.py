"""Search a page of `report` for a key.

A page has the digest of each key that it shows, so the search does not depend on how it writes
a key. Free texts are searched in the form that pages give them.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

from fairlead.pipeline.erase.wanted import Wanted
from fairlead.pipeline.hashing import hashed_key

CUT = "…"
"""Mark of a text that a page has shortened."""

LEAST_PART = 16
"""Characters of a long key beside `CUT` that are taken for it; of a shorter key, half of it."""

MOST_PART = 200
"""Characters of a key that are compared; pages shorten texts to fewer."""

_TAG = re.compile(r"<[^>]*>")
_BLANK = re.compile(r"[\s·\u200b]+")


def shows(page: Path, wanted: Wanted) -> bool:
    """Return whether a page shows the key, or its digest (see `report --hash-keys`). Raise
    OSError."""
    text = page.read_text(encoding="utf-8", errors="replace")
    if any(hashed_key(name) in text for name in wanted.names) or wanted.mention.search(text):
        return True
    plain = normal(html.unescape(_TAG.sub(" ", text)))
    return any(_mentions(plain, form) for form in {*map(normal, wanted.forms)} if form)


def normal(text: str) -> str:
    """Return the text as pages write it, whatever they do with white space and with characters that
    cannot be printed."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return _BLANK.sub(" ", plain).strip()


def _mentions(plain: str, form: str) -> bool:
    if re.search(rf"(?<!\w){re.escape(form)}(?!\w)", plain):
        return True
    sizes = range(min(LEAST_PART, (len(form) + 1) // 2), min(len(form), MOST_PART) + 1)
    for cut in re.finditer(CUT, plain):
        # White space is single here, so one more character is enough.
        before = plain[max(0, cut.start() - MOST_PART - 1) : cut.start()].rstrip()
        after = plain[cut.end() : cut.end() + MOST_PART + 1].lstrip()
        if any(before.endswith(form[:size]) for size in sizes):
            return True
        if any(after.startswith(form[-size:]) for size in sizes):
            return True
    return False
