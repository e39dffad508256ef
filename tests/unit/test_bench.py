"""The benchmarks import only names that exist. Most of them run too long to be run by the tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
BENCHMARKS = sorted(path.name for path in ROOT.glob("bench/*.py"))


def imports_of(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fairlead"):
            yield from ((str(node.module), name.name) for name in node.names)


def defines(module: str, name: str) -> bool:
    folder = SOURCES.joinpath(*module.split("."))
    if (folder / f"{name}.py").exists() or (folder / name).is_dir():
        return True
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    if not path.exists():
        return False
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.ClassDef(name=found) | ast.FunctionDef(name=found):
                names = {found}
            case ast.AsyncFunctionDef(name=found):
                names = {found}
            case ast.Name(id=found, ctx=ast.Store()):
                names = {found}
            case ast.ImportFrom(names=aliases) | ast.Import(names=aliases):
                names = {alias.asname or alias.name for alias in aliases}
            case _:
                continue
        if name in names:
            return True
    return False


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_name_that_a_benchmark_imports_from_fairlead_exists(benchmark: str) -> None:
    missing = [
        f"{module}.{name}"
        for module, name in imports_of(ROOT / "bench" / benchmark)
        if not defines(module, name)
    ]
    assert missing == []
