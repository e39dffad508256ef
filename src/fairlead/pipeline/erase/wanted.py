"""What is to be erased, as it may be written: in rows, inside JSON, on a page. Pure."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from functools import cached_property

ERASED = "(erased)"
"""Stands where a key, or a mention of one, stood in a row of somebody else."""

KEY_COLUMNS = ("fairness_key", "subject", "max_lag_key", "noisy_key")
TEXT_COLUMNS = ("error_text", "error", "details", "raw", "params", "checks", "actor", "reason")
"""Free text and JSON, in which a key may be mentioned."""


@dataclass(frozen=True)
class Wanted:
    """A key under all names that its rows may have: itself, and its digest in a lake whose keys are
    hashed."""

    names: frozenset[str]

    @cached_property
    def forms(self) -> tuple[str, ...]:
        """The names as they are written in text, in JSON and in HTML, longest first."""
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
        """Any of the forms as a whole word: `tenant-1` is not mentioned by `tenant-10`, nor `a` by
        `was`."""
        return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, self.forms))})(?!\w)")

    @cached_property
    def bytes_mention(self) -> re.Pattern[bytes]:
        """The same in files of any kind."""
        forms = b"|".join(re.escape(form.encode(errors="surrogatepass")) for form in self.forms)
        return re.compile(rb"(?<![A-Za-z0-9_])(?:" + forms + rb")(?![A-Za-z0-9_])")

    def is_in_json(self, text: str) -> bool:
        """Whether a row that was kept as JSON is one of the key."""
        try:
            row = json.loads(text)
        except ValueError:
            return False
        return isinstance(row, dict) and row.get("fairness_key") in self.names

    def redacted(self, text: str) -> str:
        """The text without any mention."""
        return self.mention.sub(ERASED, text)
