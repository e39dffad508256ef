"""The benchmarks import only names that exist. Most of them run too long to be run by the tests."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = sorted(path.name for path in ROOT.glob("bench/*.py"))


def imports_of(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fairlead"):
            yield from ((str(node.module), name.name) for name in node.names)


def defines(module: str, name: str) -> bool:
    return hasattr(importlib.import_module(module), name) or (
        importlib.util.find_spec(f"{module}.{name}") is not None
    )


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_name_that_a_benchmark_imports_from_fairlead_exists(benchmark: str) -> None:
    missing = [
        f"{module}.{name}"
        for module, name in imports_of(ROOT / "bench" / benchmark)
        if not defines(module, name)
    ]
    assert missing == []
