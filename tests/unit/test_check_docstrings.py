"""The docstring checker finds missing docstrings, errors, units and sources."""

from __future__ import annotations

import pytest

from scripts.check_docstrings import check

PORT = 'class Store(Protocol):\n    def read(self) -> int:\n        """Return a row."""\n'


def rules(source: str, path: str = "src/fairlead/engine/module.py", port: str = "") -> list[str]:
    sources = {"src/fairlead/ports/store.py": port, path: source}
    return [finding.rule for finding in check(sources)]


def test_a_public_function_needs_a_docstring() -> None:
    assert rules("def f(): ...\n") == ["docstring"]
    assert rules('def f():\n    """Do nothing."""\n') == []
    assert rules("def _f(): ...\n") == []


def test_a_method_inherits_the_docstring_of_a_port_or_a_base_class() -> None:
    method = "    def read(self) -> int: ...\n"
    assert rules(f"class Rows:\n{method}") == ["docstring"]
    assert rules(f"class Rows:\n{method}", port=PORT) == []
    base = 'class Base:\n    def read(self) -> int:\n        """Return a row."""\n'
    assert rules(f"{base}class Rows(Base):\n{method}") == []


def test_the_docstring_of_a_function_or_its_class_names_the_errors_that_it_raises() -> None:
    body = "raise ValueError('x')"
    assert rules(f'def f():\n    """Fail."""\n    {body}\n') == ["error"]
    assert rules(f'def f():\n    """Fail. Raises ValueError."""\n    {body}\n') == []
    method = f'    def f(self):\n        """Fail."""\n        {body}\n'
    assert rules(f'class A:\n    """A value. Raises ValueError."""\n{method}') == []


def test_a_command_names_no_errors_since_its_docstring_is_its_help() -> None:
    source = "def f():\n    '''Fail.'''\n    raise ValueError('x')\n"
    assert rules(source, "src/fairlead/cli/module.py") == []


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ("def f(ttl: float):\n    '''Wait.'''\n", "def f(ttl: float):\n    '''Wait `ttl` seconds.'''\n"),
        ("def f(timeout: float):\n    '''Wait.'''\n", "def f(timeout_seconds: float):\n    '''Wait.'''\n"),
        ("class A:\n    delay: float\n", "class A:\n    delay: float\n    '''Seconds.'''\n"),
        ("class A:\n    size: int\n", "class A:\n    size: int  # bytes\n"),
        ("DELAY = 5\n", "DELAY = 5\n'''Seconds between two tries.'''\n"),
    ],
)  # fmt: skip
def test_a_time_or_a_size_has_a_unit(bad: str, good: str) -> None:
    assert rules(bad) == ["unit"]
    assert rules(good) == []


def test_a_module_of_the_core_that_names_an_algorithm_names_its_source() -> None:
    path = "src/fairlead/core/fair/module.py"
    assert rules('"""A count-min sketch."""\n', path) == ["source"]
    assert rules('"""A count-min sketch (Cormode and Muthukrishnan 2005)."""\n', path) == []
