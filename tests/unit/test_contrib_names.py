"""The public names of `fairlead.contrib` and their parameters change only on purpose."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import fairlead.contrib
from tests.contrib_surface import DJANGO_MODULES, MODULES, contrib_surface

LISTED = Path(__file__).with_name("contrib_names.txt")
"""The names, which other people's code uses; a change here needs a line in CHANGELOG.md."""


def test_names_and_parameters_are_those_of_the_list() -> None:
    for package in ("flask", "fastapi", "litestar", "prometheus_client", "opentelemetry"):
        pytest.importorskip(package, reason=f"install {package}")
    pytest.importorskip("django", reason="install Django")
    made = subprocess.run(
        [sys.executable, "-m", "tests.contrib_surface"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    found = [*contrib_surface(MODULES), *made.stdout.splitlines()]
    assert found == LISTED.read_text(encoding="utf-8").splitlines()


def test_every_module_is_in_the_list() -> None:
    known = {name.partition(".")[0] for name in (*MODULES, *DJANGO_MODULES)}
    assert {each.name for each in pkgutil.iter_modules(fairlead.contrib.__path__)} == known
