"""Check that code and documentation keep the language of docs/reference/glossary.md.

Reads docstrings, attribute notes, comments, names and Markdown. Prints one line per finding and
exits 1 if there is any. `--count` prints how many findings each folder has, by rule.

    python scripts/check_language.py                     # everything
    python scripts/check_language.py src/fairlead/core   # one folder or file
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["src", "tests", "bench", "services", "examples", "scripts", "docs"]
SKIPPED = {"docs/decisions", "docs/reference/glossary.md", "scripts/check_language.py"}

OPENINGS = re.compile(
    r"(Of|The same|What|Those|That|It|They|Whoever|Who|Whose|Whom|Whatever|These|This|Both|Its"
    r"|Their|Them|He|She|Nobody|Somebody|Everybody|Anybody)\b(?!')"
)
"""Openings of a docstring, a note or a comment that have no noun of their own."""
HEADED = re.compile(
    r"(This|These|That|Those|Both) (?!is|are|was|were|has|have|does|do|can|may|must"
    r"|will|would|also|way|of|in|on|at|to|for|from|with|and|or|what|who|which|that)[a-z]+"
)
"""`This queue`, `Both stores`: the noun is there."""
PRONOUN = re.compile(
    r"(?<=[.!?] )(It|They|Those|These|This|That) (is|are|was|were|has|have|does|do"
    r"|did|can|may|must|will|would|goes|comes|makes|keeps|takes|says|costs|holds)\b"
)
"""A later sentence whose subject is only a pronoun."""
PHRASES = {
    re.compile(r"\banswer(s|ed|ing)?\b", re.I): "use `return`, `response` or `respond`",
    re.compile(
        r"\bso (often|many|much|long|few) (behind|as|a)\b", re.I
    ): "say which number is meant",
    re.compile(
        r"\b(is|are|was|were|be|been) (told|heard of|asked for by)\b", re.I
    ): "say who does what",
    re.compile(r"\bnobody (says|knows)\b", re.I): "say what is unknown",
    re.compile(r"\b(lets?|let) (us|it|them) (not|go)\b", re.I): "use plain word order",
}
WORDS = {
    "grab": "claim",
    "grabs": "claims",
    "grabbed": "claimed",
    "grabbing": "claiming",
    "bell": "notifier",
    "bells": "notifiers",
    "ear": "listener",
    "ears": "listeners",
    "warden": "watchdog",
    "booking": "acquire / release a slot",
    "bookings": "acquire / release a slot",
    "unbook": "cancel",
    "booked": "acquired",
    "troubles": "OutageLog",
    "surroundings": "context",
    "alarm": "TimedEvent",
    "keeper": "exporter",
    "pulse": "heartbeat",
    "relocate": "evict",
    "aside": "evict",
    "stretches": "windows",
    "shakes": "perturbations",
}
"""Retired words and what took their place: not in names, comments, docstrings or documents."""
RETIRED_DEFS = {"tell", "told", "heard", "gone", "seen", "shut", "retire", "forget", "let", "give"}
"""No function's name begins with these: `on_*`, `notify`, `close`, `release`, `drop` do."""


class Finding(NamedTuple):
    """One breach of a rule, at a line of a file."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def check_text(path: str, line: int, text: str, is_start: bool = True) -> Iterator[Finding]:
    """Yield what is wrong with one docstring, note, comment or paragraph.

    is_start: whether `text` begins a docstring or comment, so that its opening counts.
    """
    plain = re.sub(r"`[^`]*`|\"[^\"]*\"|https?://\S+", "X", " ".join(text.split()))
    if is_start and OPENINGS.match(plain) and not HEADED.match(plain):
        yield Finding(path, line, "opening", plain[:60])
    for found in PRONOUN.finditer(plain):
        yield Finding(path, line, "pronoun", plain[found.start() : found.start() + 50])
    for pattern, cure in PHRASES.items():
        for found in pattern.finditer(plain):
            yield Finding(path, line, "phrase", f"{found.group()!r}: {cure}")
    for word in re.findall(r"[a-z]+", plain.lower()):
        if word in WORDS:
            yield Finding(path, line, "word", f"{word!r}: say {WORDS[word]!r}")


def check_name(path: str, line: int, name: str, is_def: bool) -> Iterator[Finding]:
    """Yield what is wrong with one name of a class, function, parameter or attribute."""
    words = [w.lower() for w in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]
    if name.startswith("ZooKeeper"):
        return
    for word in words:
        if word in WORDS:
            yield Finding(path, line, "name", f"{name!r}: say {WORDS[word]!r}")
    if is_def and words and words[0] in RETIRED_DEFS:
        yield Finding(path, line, "name", f"{name!r}: use one of the verbs of the glossary")


def check_python(path: str, source: str) -> Iterator[Finding]:
    """Yield what is wrong with the texts and names of a module."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                yield from check_text(path, statement.lineno, statement.value.value)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from check_name(path, node.lineno, node.name, not isinstance(node, ast.ClassDef))
        elif isinstance(node, ast.arg):
            yield from check_name(path, node.lineno, node.arg, False)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.id if isinstance(node, ast.Name) else node.attr
            yield from check_name(path, node.lineno, name, False)
    last, is_own_line = -2, False
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = token.string.lstrip("#: ")
            follows = token.start[0] == last + 1 and is_own_line
            is_own_line = not token.line[: token.start[1]].strip()
            if not re.match(r"(noqa|type:|mypy:|pragma|fmt:|!)", text):
                yield from check_text(path, token.start[0], text, not follows)
            last = token.start[0]


def check_markdown(path: str, source: str) -> Iterator[Finding]:
    """Yield what is wrong with the prose of a page; code blocks are left out."""
    is_code = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith("    "):
            yield from check_text(path, number, line, is_start=False)


def check_file(path: Path) -> Iterator[Finding]:
    """Yield what is wrong with one file."""
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
    if any(name.startswith(skipped) for skipped in SKIPPED):
        return
    check = check_python if path.suffix == ".py" else check_markdown
    yield from check(name, path.read_text())


def files(wanted: list[Path]) -> Iterator[Path]:
    """Yield the Python and Markdown files below each path, sorted."""
    for path in wanted:
        if path.is_file():
            yield path
        else:
            found = (p for p in path.rglob("*") if p.suffix in {".py", ".md"})
            # A benchmark keeps an environment of its own.
            yield from sorted(p for p in found if ".venv" not in p.parts)


def main(arguments: list[str] | None = None) -> int:
    """Print the findings and return the exit status: 1 if there is any."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders; default: the tree")
    parser.add_argument("--count", action="store_true", help="count by folder and rule")
    options = parser.parse_args(arguments)
    default = [*(ROOT / each for each in FOLDERS), *sorted(ROOT.glob("*.md"))]
    paths = [path.resolve() for path in options.paths] or default
    findings = [finding for path in files(paths) for finding in check_file(path)]
    if options.count:
        counts = Counter(("/".join(f.path.split("/")[:4][:-1]), f.rule) for f in findings)
        for (folder, rule), n in sorted(counts.items()):
            print(f"{n:6} {rule:8} {folder}")
    else:
        print(*findings, sep="\n")
    print(f"{len(findings)} findings", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
