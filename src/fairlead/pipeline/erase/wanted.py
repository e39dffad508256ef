"""A key to erase, in all its written forms: in rows, in JSON, and on pages of `report`.

A page has the digest of each key that it shows, so the search of a page does not depend on how it
writes a key. Free texts are searched in the form that pages give them.
"""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fairlead.pipeline.hashing import hashed_key

ERASED = "(erased)"
"""Replacement of a key or mention in a row of another key."""

KEY_COLUMNS = ("fairness_key", "subject", "max_lag_key", "noisy_key")
TEXT_COLUMNS = ("error_text", "error", "details", "raw", "params", "checks", "actor", "reason")
"""Columns of free text and JSON that may mention a key."""


CUT = "…"
"""Mark of a text that a page has shortened."""

LEAST_PART = 16
"""Characters of a long key beside `CUT` that are taken for it; of a shorter key, half of it."""

MOST_PART = 200
"""Characters of a key that are compared; pages shorten texts to fewer."""

_TAG = re.compile(r"<[^>]*>")
_BLANK = re.compile(r"[\s·\u200b]+")


@dataclass(frozen=True)
class Wanted:
    """A key, by the names under which rows store it: the key, or its digest if keys are hashed."""

    names: frozenset[str]

    @cached_property
    def forms(self) -> tuple[str, ...]:
        """Return the names as written in text, JSON and HTML, longest first."""
        written = set(self.names)
        for name in self.names:
            written |= {json.dumps(name, ensure_ascii=ascii)[1:-1] for ascii in (True, False)}
            written |= {html.escape(name, quote) for quote in (True, False)}
        return tuple(sorted(written, key=lambda form: (-len(form), form)))

    @cached_property
    def mention(self) -> re.Pattern[str]:
        """Pattern of any form as a whole word: `tenant-10` does not mention `tenant-1`, and `was`
        does not mention `a`."""
        return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, self.forms))})(?!\w)")

    @cached_property
    def bytes_mention(self) -> re.Pattern[bytes]:
        """Pattern like `mention`, for the bytes of any file."""
        forms = b"|".join(re.escape(form.encode()) for form in self.forms)
        return re.compile(rb"(?<![A-Za-z0-9_])(?:" + forms + rb")(?![A-Za-z0-9_])")

    def is_in_json(self, text: str) -> bool:
        """Return whether a row stored as JSON belongs to the key."""
        try:
            row = json.loads(text)
        except ValueError:
            return False
        return isinstance(row, dict) and row.get("fairness_key") in self.names

    def redacted(self, text: str) -> str:
        """Return the text with ERASED in place of each mention."""
        return self.mention.sub(ERASED, text)


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
