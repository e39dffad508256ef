"""Run the code blocks of README, tutorial, how-tos and explanations, in the order of each page.

Each page runs in a temporary folder. A Python block that names its file (`# shop.py`, or "Save this
as `shop.py`" above the block) is saved; another Python block is executed, all in one namespace.
Shell blocks run with `bash -e` and share their exported variables. TOML, JSON and INI are parsed.
Comments in the source of a page steer the run:

    <!-- test: skip because REASON -->   the next block is not run
    <!-- test: append to FILE -->        the next block continues that file
    <!-- test: output -->                the next block is what the last commands printed
    <!-- test: headings -->              the last commands printed the block's lines without digits
    <!-- test: cron -->                  the command of each line of a crontab is run
    <!-- test: setup sh ... -->          commands that the reader is assumed to have run
    <!-- test: setup python ... -->      names that the next Python blocks assume

`spark` before a directive or after `setup`, or alone, marks a block that needs Spark. A page with such
blocks runs once more in a test marked `spark`, with all of its blocks, beside a copy of a store and
a lake with a recorded workload (`FAIRLEAD_URL`, `FAIRLEAD_LAKE`). Python for Spark runs in a process
of its own, and SQL in `spark-sql`.

The run differs from the page: URLs of servers lead to the tests' servers, folders such as `/var/lib`
are below the temporary folder, `ID` is the content of the file `ID` or else a task in ERROR, a worker
gets `--until-empty`, `make` prints its commands only, and `pip`
checks the extras. Beside a recorded workload, 2026-11-23 means today, and every instant of SQL is now.
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
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from services import iceberg
from tests.conftest import skip_if_missing
from tests.end_to_end.test_command_line import ROOT, environment
from tests.pipeline.recorded_history import record
from tests.tiers import NIGHTLY

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "tutorial").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    *sorted((ROOT / "docs" / "explanation").glob("*.md")),
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
    "kafka_url": re.compile(
        r"kafka://(?:k1:9092,k2:9092|broker:9092)/\?prefix=shop\.(?:&replication=3)?"
    ),
    "other_cassandra_url": re.compile(r"cassandra://c1,c2,c3/alone\?replication=3"),
    "cassandra_url": re.compile(r"cassandra://(?:user:password@)?c1[\w,]*/\w+\?replication=3"),
    "other_kafka_url": re.compile(r"kafka://k1,k2,k3/\?prefix=alone\."),
    "zookeeper_url": re.compile(r"zookeeper://z1,z2,z3/alone"),
}
"""URLs that pages show, by the fixture with the URL that a test uses instead."""

FOLDERS = re.compile(r"(?<![\w.])/(?=(?:var/lib|etc|srv/www)/)")
"""Roots of absolute folders on a page, which a test replaces by its own folder."""

DAY = re.compile(r"\b2026-11-\d\d\b")
PRESENT = date(2026, 11, 23)
"""The day on which the pages are read."""

INSTANT = re.compile(r"'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d'")

DIRECTIVE = re.compile(
    r"skip because .+|(?P<spark>spark\b ?)?(?P<rule>append to \S+|output|headings|cron)?",
    re.DOTALL,
)

COMMANDS = {
    "fairlead": """case " $* " in
  " worker "*) set -- "$@" --until-empty ;;
esac
exec "$PYTHON" -m fairlead "$@" """,
    "python": 'exec "$PYTHON" "$@"',
    "make": 'PATH="$OLD_PATH" exec make -C "$ROOT" --dry-run "$@"',
    "pip": """for extra in $(printf %s "$*" | grep -o '\\[.*\\]' | tr -d '[]' | tr , ' '); do
  grep -q "^$extra = \\[" "$ROOT/pyproject.toml" || { echo "no extra $extra"; exit 1; }
done""",
}
"""Shell scripts that replace real commands."""


@dataclass(frozen=True)
class Step:
    """One fenced block or one setup comment of a page."""

    page: Path
    line: int
    kind: str
    """Language of the block, or "setup sh", "setup python"."""
    text: str
    directive: str
    """Directive of the comment before the block, without `spark`."""
    file: str | None
    """File to which the block is saved."""
    needs_spark: bool = False

    @property
    def is_skipped(self) -> bool:
        return self.directive.startswith("skip because ")

    @property
    def is_block(self) -> bool:
        return not self.kind.startswith("setup ")


def read(page: Path) -> list[Step]:
    """Return the steps of a page in order. Raise ValueError for an unknown directive."""
    content = page.read_text()
    steps, directive, needs_spark = [], "", False
    for match in STEP.finditer(content):
        line = content[: match.start()].count("\n") + 1
        if (found := match["directive"]) is not None:
            if found.startswith("setup "):
                kind, _, text = found.partition("\n")
                of_spark = kind.startswith("setup spark ")
                kind = kind.replace("setup spark ", "setup ")
                steps.append(Step(page, line, kind, text + "\n", "", None, of_spark))
            elif found and (rule := DIRECTIVE.fullmatch(found)):
                directive = (
                    found if rule["rule"] is None and not rule["spark"] else rule["rule"] or ""
                )
                needs_spark = rule["spark"] is not None
            else:
                raise ValueError(f"{page.name}:{line}: unknown directive {found!r}")
            continue
        named = FILE.match(match["text"]) or SAVE_AS.search(content[: match.start()].rstrip())
        appended = directive.removeprefix("append to ") if "append to" in directive else None
        file = appended or (named[1] if named else None)
        steps.append(
            Step(page, line, match["language"], match["text"], directive, file, needs_spark)
        )
        directive, needs_spark = "", False
    return steps


class Reader:
    """Runs the steps of one page in `folder`, as a person would."""

    def __init__(self, folder: Path, urls: dict[str, str], shift: timedelta | None = None) -> None:
        """`urls` are the servers' URLs by the name of their fixture. `shift` is added to the dates
        of the page."""
        self.folder, self.urls, self.shift = folder, urls, shift
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
            # As installed, whatever the entry points of this environment are.
            "PYTEST_PLUGINS": "fairlead.pytest_plugin",
        }

    def do(self, step: Step) -> None:
        """Run, save, parse or compare one step."""
        text = self._adapted(step.text)
        if step.directive == "output":
            assert _lines(self.output) == _lines(text)
        elif step.directive == "headings":
            missing = set(_headings(text)) - set(_headings(self.output))
            assert not missing, f"{missing} not in:\n{self.output}"
        elif step.directive == "cron":
            for line in _lines(text):
                self._run(line.split(maxsplit=5)[5])
        elif step.file is not None:
            if step.kind in DATA:
                DATA[step.kind](text)
            with (self.folder / step.file).open("a") as file:
                file.write(text)
        elif step.kind in DATA:
            DATA[step.kind](text)
        elif step.kind == "sql":
            (self.folder / ".block.sql").write_text(INSTANT.sub(f"'{datetime.now(UTC)}'", text))
            self._run('"$SPARK_SQL" --conf spark.sql.session.timeZone=UTC -f .block.sql')
        elif step.kind.endswith("sh"):
            self._run(text)
        elif step.kind.endswith("python") and step.needs_spark:
            self._run_python(text, is_setup=not step.is_block)
        elif step.kind.endswith("python"):
            self._execute(text, f"{step.page.name}:{step.line}", step.line)
        else:
            raise AssertionError(f"no rule for a block of {step.kind or 'no language'}")

    def _adapted(self, text: str) -> str:
        for fixture, url in self.urls.items():
            text = SERVERS[fixture].sub(lambda _, url=url: url, text)
        for folder in ("var/lib/fairlead", "etc/fairlead", "srv/www"):
            if f"/{folder}" in text:
                (self.folder / folder).mkdir(parents=True, exist_ok=True)
        text = FOLDERS.sub(f"{self.folder}/", text)
        if self.shift is not None:
            shift = self.shift
            text = DAY.sub(lambda day: str(date.fromisoformat(day[0]) + shift), text)
        return text

    def _run_python(self, text: str, is_setup: bool) -> None:
        file = self.folder / ".block.py"
        known = file.read_text() if file.exists() else ""
        file.write_text(known + text)
        if not is_setup:
            self._run("python .block.py")
            file.write_text(known)

    def _run(self, text: str) -> None:
        if re.search(r"(?<=[a-z] )ID\b", text):
            text = re.sub(r"(?<=[a-z] )ID\b", self._task_in_error(text), text)
        done = subprocess.run(
            ["bash", "-e", "-c", f"{text}\nenv -0 > .environment"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=900,  # a guard against a hang, not a measure
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
            [sys.executable, "-m", "fairlead", "tasks", "--state", "ERROR", "--json"] + options,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return str(json.loads(found.stdout)["tasks"][0]["id"])

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


def _headings(text: str) -> list[str]:
    lines = (" ".join(line.split()) for line in text.splitlines())
    return [line for line in lines if line.strip(".") and not re.search(r"\d", line)]


def _parameters(pages: list[Path]) -> list[Any]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


def _work_through(
    page: Path,
    steps: list[Step],
    request: pytest.FixtureRequest,
    folder: Path,
    shift: timedelta | None = None,
) -> None:
    """Do the steps in order. Name page and line in an error."""
    shown = "\n".join(step.text for step in steps)
    urls = {
        fixture: request.getfixturevalue(fixture)
        for fixture, url in SERVERS.items()
        if url.search(shown)
    }
    if shift is not None and "migrated_postgres_url" in urls:
        record(urls["migrated_postgres_url"])
    before = set(sys.modules)
    reader = Reader(folder, urls, shift)
    if shift is not None:
        reader.environment |= RECORDED | {
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "SPARK_SQL": str(
                Path(pytest.importorskip("pyspark").__file__).parent / "bin/spark-sql"
            ),
        }
    try:
        for step in steps:
            try:
                reader.do(step)
            except BaseException as error:
                error.add_note(f"{page.relative_to(ROOT)}:{step.line}")
                raise
    finally:
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]


@pytest.mark.parametrize("page", _parameters(PAGES))
def test_the_blocks_of_a_page_run_as_the_reader_types_them(
    page: Path,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Any,
) -> None:
    steps = read(page)
    blocks = [step for step in steps if step.is_block]
    todo = [step for step in steps if not step.is_skipped and not step.needs_spark]
    record_property("blocks run", sum(step.is_block for step in todo))
    record_property("blocks skipped", sum(step.is_skipped for step in blocks))
    if any(step.is_block for step in todo):
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        _work_through(page, todo, request, tmp_path)


@pytest.fixture
def other_kafka_url(request: pytest.FixtureRequest) -> str:
    """URL with a prefix that no other application of the page has used."""
    return str(request.getfixturevalue("kafka_server").create_prefix())


@pytest.fixture
def other_cassandra_url(request: pytest.FixtureRequest) -> str:
    """URL with a keyspace that no other application of the page has used."""
    return str(request.getfixturevalue("cassandra_server").create_keyspace())


RECORDED = {"FAIRLEAD_URL": "sqlite:///tasks.db", "FAIRLEAD_LAKE": "lake"}


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store, `tasks.db`, and a lake, `lake`, that Spark has built from it, and a
    copy of it beside, from which each page gets it back: the files of a lake name their folder."""
    folder = tmp_path_factory.mktemp("recorded")
    record(f"sqlite:///{folder / 'tasks.db'}")
    for command in ("ingest", "build"):
        subprocess.run(
            [sys.executable, "-m", "fairlead", "pipeline", command],
            cwd=folder,
            env=environment() | RECORDED,
            check=True,
            timeout=900,
        )
    shutil.copytree(folder, f"{folder}-copy")
    return folder


SPARK_PAGES = [page for page in PAGES if any(step.needs_spark for step in read(page))]


@NIGHTLY("a slow start")  # of Spark, for each block; test_commands runs the same commands
@pytest.mark.spark
@pytest.mark.parametrize("page", _parameters(SPARK_PAGES))
def test_the_blocks_of_a_page_run_on_spark_beside_a_recorded_workload(
    page: Path,
    recorded: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.rmtree(recorded)
    shutil.copytree(f"{recorded}-copy", recorded)
    monkeypatch.chdir(recorded)
    monkeypatch.syspath_prepend(str(recorded))
    steps = [step for step in read(page) if not step.is_skipped]
    if any("services.iceberg" in step.text for step in steps):
        with skip_if_missing("iceberg"):
            iceberg.jar()
    _work_through(page, steps, request, recorded, datetime.now(UTC).date() - PRESENT)


def test_every_skipped_block_names_its_reason_and_is_counted() -> None:
    blocks = [step for page in PAGES for step in read(page) if step.is_block]
    skipped = [step for step in blocks if step.is_skipped]
    of_spark = sum(step.needs_spark for step in blocks)
    print(
        f"{len(blocks)} blocks, {len(blocks) - len(skipped)} run ({of_spark} on Spark),"
        f" {len(skipped)} skipped"
    )
    for step in skipped:
        print(f"{step.page.relative_to(ROOT)}:{step.line}: {step.directive}")
    assert all(len(step.directive.split()) > 3 for step in skipped)
