"""Type checkers of users: mypy and pyright accept what the guides show, and find wrong names and
types."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import get_overloads

import pytest

from fairlead import App
from fairlead.declare.task import HandlerOptions
from tests.end_to_end.test_docs import PAGES, read

ROOT = Path(__file__).resolve().parents[2]
FILES = [ROOT / "tests" / "types" / name for name in ("accepted.py", "refused.py")]
CONFIG = """
[tool.mypy]
strict = true
disallow_untyped_calls = false
disallow_untyped_decorators = false
warn_unused_ignores = false

[tool.pyright]
pythonVersion = "3.11"
reportMissingImports = false
reportMissingModuleSource = false
"""
GUIDES = ("first-task", "from-others", "periodic", "transactions")


def expected() -> set[tuple[str, int]]:
    """Return (file, line) of each line marked as wrong."""
    return {
        (file.name, number)
        for file in FILES
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if line.endswith("# wrong")
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of types and the modules of the guides, checked in one run."""
    folder = tmp_path_factory.mktemp("types")
    (folder / "pyproject.toml").write_text(CONFIG)
    for file in FILES:
        (folder / file.name).write_text(file.read_text())
    for page in PAGES:
        if page.stem not in GUIDES:
            continue
        modules: dict[str, str] = {}
        for step in read(page):
            if step.kind == "python" and step.file is not None and not step.is_skipped:
                modules[step.file] = modules.get(step.file, "") + step.text
        for name, text in modules.items():
            inner = folder / f"guide_{page.stem.replace('-', '_')}_{name}"
            inner.write_text(text)
    return folder


@cache
def mypy(folder: Path) -> set[tuple[str, int]]:
    """Return (file, line) of each error that mypy finds."""
    options = ["--no-error-summary", "--config-file", "pyproject.toml", "--cache-dir", ".cache"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *sorted(p.name for p in folder.glob("*.py"))],
        cwd=folder,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^([\w.]+):(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    print(done.stdout)
    wanted = {name.name for name in FILES}
    return {
        (file, int(line))
        for file, line, code in found
        if file in wanted or code in ("arg-type", "call-arg", "call-overload", "attr-defined")
    }


@cache
def pyright(folder: Path) -> set[tuple[str, int]]:
    """Return (file, line) of each error that pyright finds. Skip the test if its program, which
    PyPI's package fetches at its first run, cannot be had."""
    pytest.importorskip("pyright", reason="pyright is not installed: pip install 'pyright[nodejs]'")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    try:
        found = json.loads(done.stdout)
    except json.JSONDecodeError:
        pytest.skip(f"pyright cannot fetch its program: {done.stderr[-300:]}")
    errors = [each for each in found["generalDiagnostics"] if each["severity"] == "error"]
    for each in errors:
        print(each["file"], each["range"]["start"]["line"] + 1, each["message"])
    return {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in errors}


def test_mypy_finds_each_wrong_line_and_no_other(folder: Path) -> None:
    assert mypy(folder) == expected()


def test_pyright_finds_each_wrong_line_and_no_other(folder: Path) -> None:
    assert pyright(folder) == expected()


def test_the_package_says_that_it_has_types() -> None:
    assert (ROOT / "src" / "fairlead" / "py.typed").exists()
    assert len(expected()) > 20


def test_each_signature_of_task_has_all_options() -> None:
    options = inspect.signature(App.task).parameters.keys() - {"self", "function"}
    signatures = [inspect.signature(each).parameters for each in get_overloads(App.task)]
    assert [set(each) - {"self", "function"} for each in signatures] == [set(), options, options]
    assert HandlerOptions.__annotations__.keys() == options
