"""Run the code blocks of the README, the tutorial and the how-tos, in the order of each page.

Each page runs in a temporary folder. A Python block that names its file (`# shop.py`, or "Save this
as `shop.py`" above the block) is saved; another Python block is executed, all in one namespace.
Shell blocks run with `bash -e` and share their exported variables. TOML, JSON and INI are parsed.
Comments in the source of a page steer the run:

    <!-- test: skip because REASON -->   the next block is not run
    <!-- test: append to FILE -->        the next block continues that file
    <!-- test: output -->                the next block is what the last commands printed
    <!-- test: setup sh ... -->          commands that the reader is assumed to have run
    <!-- test: setup python ... -->      names that the next Python blocks assume

Changes against the page: URLs of servers lead to the tests' servers, `ID` is the content of the
file `ID` or else a task in ERROR, a worker gets `--until-empty`, `make` prints its commands only, and
`pip` checks the extras.
"""

from __future__ import annotations

import ast
import asyncio
import configparser
import doctest
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.test_command_line import ROOT, environment, fairlead

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "tutorial").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
]
STEP = re.compile(
    r"<!-- test: (?P<directive>.*?)\s*-->|^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
FILE = re.compile(r"\A# ([\w.-]+\.\w+)")
SAVE_AS = re.compile(r"Save this (?:file )?as `([\w.-]+)`[^`]*\Z")
DATA = {
    "toml": tomllib.loads,
    "json": json.loads,
    "ini": configparser.ConfigParser(strict=False, allow_no_value=True).read_string,
}
SERVERS = {
    "migrated_postgres_url": re.compile(r"postgresql://(?:app@)?db/shop"),
    "redis_url": re.compile(r"redis://(?:localhost|r1):6379/0"),
    "kafka_url": re.compile(r"kafka://k1:9092,k2:9092/\?prefix=shop\."),
    "cassandra_url": re.compile(r"cassandra://(?:user:password@)?c1[\w,]*/\w+\?replication=3"),
}
"""URLs that pages show, by the fixture with the URL that a test uses instead."""

COMMANDS = {
    "fairlead": """if [ "$1" = worker ]; then set -- "$@" --until-empty; fi
exec "$PYTHON" -m fairlead "$@" """,
    "python": 'exec "$PYTHON" "$@"',
    "make": 'PATH="$OLD_PATH" exec make -C "$ROOT" --dry-run "$@"',
    "pip": """for extra in $(printf %s "$*" | grep -o '\\[.*\\]' | tr -d '[]' | tr , ' '); do
  grep -q "^$extra = \\[" "$ROOT/pyproject.toml" || { echo "no extra $extra"; exit 1; }
done""",
}
"""Shell scripts that stand before the real commands."""


@dataclass(frozen=True)
class Step:
    """One fenced block or one setup comment of a page."""

    page: Path
    line: int
    kind: str
    """Language of the block, or "setup sh", "setup python"."""
    text: str
    directive: str
    file: str | None
    """File to which the block is saved."""

    @property
    def is_skipped(self) -> bool:
        return self.directive.startswith("skip because ")

    @property
    def is_block(self) -> bool:
        return not self.kind.startswith("setup ")


def read(page: Path) -> list[Step]:
    """Return the steps of a page in order. Raise ValueError for an unknown directive."""
    content = page.read_text()
    steps, directive = [], ""
    for match in STEP.finditer(content):
        line = content[: match.start()].count("\n") + 1
        if (found := match["directive"]) is not None:
            if found.startswith("setup "):
                kind, _, text = found.partition("\n")
                steps.append(Step(page, line, kind, text + "\n", "", None))
            elif re.match(r"skip because .|append to \S+$|output$", found, re.DOTALL):
                directive = found
            else:
                raise ValueError(f"{page.name}:{line}: unknown directive {found!r}")
            continue
        named = FILE.match(match["text"]) or SAVE_AS.search(content[: match.start()].rstrip())
        appended = directive.removeprefix("append to ") if "append to" in directive else None
        file = appended or (named[1] if named else None)
        steps.append(Step(page, line, match["language"], match["text"], directive, file))
        directive = ""
    return steps


class Reader:
    """A person who works through one page in `folder`."""

    def __init__(self, folder: Path, urls: dict[str, str]) -> None:
        """`urls` are the servers' URLs by the name of their fixture."""
        self.folder, self.urls = folder, urls
        self.names: dict[str, Any] = {"__name__": "__page__"}
        self.output = ""
        commands = folder / ".commands"
        commands.mkdir()
        for name, script in COMMANDS.items():
            (commands / name).write_text(f"#!/bin/bash\n{script}\n")
            (commands / name).chmod(0o755)
        path = os.environ["PATH"]
        self.environment = environment() | {
            "PATH": f"{commands}:{path}",
            "OLD_PATH": path,
            "PYTHON": sys.executable,
            "ROOT": str(ROOT),
        }

    def do(self, step: Step) -> None:
        """Run, save, parse or compare one step."""
        text = step.text
        for fixture, url in self.urls.items():
            text = SERVERS[fixture].sub(lambda _, url=url: url, text)
        if step.directive == "output":
            assert _lines(self.output) == _lines(text)
        elif step.file is not None:
            if step.kind in DATA:
                DATA[step.kind](text)
            with (self.folder / step.file).open("a") as file:
                file.write(text)
        elif step.kind in DATA:
            DATA[step.kind](text)
        elif step.kind.endswith("sh"):
            self._run(text)
        elif step.kind.endswith("python"):
            self._execute(text, f"{step.page.name}:{step.line}", step.line)
        else:
            raise AssertionError(f"no rule for a block of {step.kind or 'no language'}")

    def _run(self, text: str) -> None:
        if re.search(r"(?<=[a-z] )ID\b", text):
            text = re.sub(r"(?<=[a-z] )ID\b", self._task_in_error(text), text)
        done = subprocess.run(
            ["bash", "-e", "-c", f"{text}\nenv -0 > .environment"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        self.output = done.stdout
        pairs = (self.folder / ".environment").read_text().split("\0")
        exported = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        self.environment |= {k: v for k, v in exported.items() if k.startswith("FAIRLEAD_")}

    def _task_in_error(self, text: str) -> str:
        if (known := self.folder / "ID").exists():
            return known.read_text().strip()
        url = re.search(r"--url (\S+)", text)
        options = ["--url", url[1]] if url else []
        found = subprocess.run(
            [sys.executable, "-m", "fairlead", "tasks", "list", "--state", "ERROR", "--json"]
            + options,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return str(json.loads(found.stdout)[0]["id"])

    def _execute(self, text: str, name: str, line: int) -> None:
        if text.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(text, self.names, name, name, line)
            failures: list[str] = []
            doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(
                test, out=failures.append, clear_globs=False
            )
            self.names |= test.globs
            assert not failures, "".join(failures)
            return
        code = compile(text, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        returned = eval(code, self.names)
        if inspect.iscoroutine(returned):
            asyncio.run(returned)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def _with_marks(page: Path) -> Any:
    name = str(page.relative_to(ROOT))
    return pytest.param(page, id=name, marks=pytest.mark.slow)


@pytest.mark.parametrize("page", [_with_marks(page) for page in PAGES])
def test_the_blocks_of_a_page_run_as_the_reader_types_them(
    page: Path,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Any,
) -> None:
    steps = read(page)
    blocks = [step for step in steps if step.is_block]
    skipped = [step for step in blocks if step.is_skipped]
    record_property("blocks run", len(blocks) - len(skipped))
    record_property("blocks skipped", len(skipped))
    print(f"{page.name}: {len(blocks)} blocks, {len(skipped)} skipped")
    for step in skipped:
        print(f"  line {step.line}: {step.directive}")
    todo = [step for step in steps if not step.is_skipped]
    if not any(step.is_block for step in todo):
        return
    shown = "\n".join(step.text for step in todo)
    urls = {
        fixture: request.getfixturevalue(fixture)
        for fixture, url in SERVERS.items()
        if url.search(shown)
    }
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    reader = Reader(tmp_path, urls)
    try:
        for step in todo:
            try:
                reader.do(step)
            except BaseException as error:
                error.add_note(f"{page.relative_to(ROOT)}:{step.line}")
                raise
    finally:
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]


def test_every_skipped_block_names_its_reason_and_is_counted() -> None:
    blocks = [step for page in PAGES for step in read(page) if step.is_block]
    skipped = [step for step in blocks if step.is_skipped]
    print(f"{len(blocks)} blocks, {len(blocks) - len(skipped)} run, {len(skipped)} skipped")
    for step in skipped:
        print(f"{step.page.relative_to(ROOT)}:{step.line}: {step.directive}")
    assert all(len(step.directive.split()) > 3 for step in skipped)


def test_the_readmes_twenty_lines_do_what_they_say(tmp_path: Path) -> None:
    (example,) = (step for step in read(ROOT / "README.md") if step.file == "shop.py")
    (tmp_path / "shop.py").write_text(example.text)
    subprocess.run(
        [sys.executable, "shop.py"], cwd=tmp_path, env=environment(), check=True, timeout=60
    )
    (queue,) = json.loads(fairlead(tmp_path, "queues", "--url", "sqlite:///tasks.db", "--json"))
    assert queue["submitted"] == 1003
    said = fairlead(tmp_path, "worker", "shop:app", "--until-empty")
    assert said.count("paying") == 1002
    (queue,) = json.loads(fairlead(tmp_path, "queues", "--url", "sqlite:///tasks.db", "--json"))
    assert (queue["submitted"], queue["processing"], queue["error"]) == (0, 0, 0)
