"""Settings of the documentation site; `make docs` builds it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fairlead
from fairlead.pipeline.dictionary import as_markdown

project = "Fairlead"
author = "the Fairlead authors"
version = release = fairlead.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "Fairlead"
html_copy_source = False
html_show_copyright = False

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
suppress_warnings = ["misc.highlighting_failure"]

_LITERAL = re.compile(r"(?<!`)`([^`]+)`(?!`)")


def as_markup(
    app: object, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Turn a plain docstring into reStructuredText: literals, and no other markup."""
    texts = "\n".join(lines).split("``")
    if len(texts) > 1:  # it has markup of its own
        return
    parts = re.split(_LITERAL, texts[0])
    for number, part in enumerate(parts):
        parts[number] = f"``{part}``" if number % 2 else re.sub(r"([*_|])", r"\\\1", part)
    lines[:] = "".join(parts).splitlines()


# The page of the pipeline's tables is the output of `fairlead pipeline tables`.
(Path(__file__).parent / "reference" / "pipeline-tables.md").write_text(as_markdown() + "\n")


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", as_markup)
