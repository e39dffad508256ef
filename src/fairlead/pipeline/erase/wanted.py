"""A key to erase, in all its written forms: in rows, JSON and HTML. Pure."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from functools import cached_property

ERASED = "(erased)"
"""Replacement of a key or mention in a row of another key."""

KEY_COLUMNS = ("fairness_key", "subject", "max_lag_key", "noisy_key")
TEXT_COLUMNS = ("error_text", "error", "details", "raw", "params", "checks", "actor", "reason")
"""Columns of free text and JSON that may mention a key."""


@dataclass(frozen=True)
class Wanted:
    """A key, by the names under which rows store it: the key, or its digest if keys are hashed."""

    names: frozenset[str]

    @cached_property
    def forms(self) -> tuple[str, ...]:
        """Return the names as written in text, JSON and HTML, longest first."""
        written = {
            form
            for name in self.names
            for form in (
                name,
                json.dumps(name)[1:-1],
                json.dumps(name, ensure_ascii=False)[1:-1],
                html.escape(name),
                html.escape(name, quote=False),
            )
        }
        return tuple(sorted(written, key=lambda form: (-len(form), form)))

    @cached_property
    def mention(self) -> re.Pattern[str]:
        """Pattern of any form as a whole word: `tenant-10` does not mention `tenant-1`, and `was`
        does not mention `a`."""
        return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, self.forms))})(?!\w)")

    @cached_property
    def bytes_mention(self) -> re.Pattern[bytes]:
        """Pattern like `mention`, for the bytes of any file."""
        forms = b"|".join(re.escape(form.encode(errors="surrogatepass")) for form in self.forms)
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
