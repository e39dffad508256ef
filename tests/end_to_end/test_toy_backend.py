"""A backend from another package passes the contract suite and runs an application."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "toy_backend"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a process that has the example installed."""
    folder = tmp_path_factory.mktemp("installed")
    offline = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    install = [sys.executable, "-m", "pip", "install", *offline, "--target", str(folder)]
    subprocess.run([*install, str(EXAMPLE)], check=True, timeout=120)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "src")])}


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment, cwd=EXAMPLE, capture_output=True, text=True, timeout=180
    )


def test_a_backend_from_outside_keeps_the_contract_and_runs_tasks(
    installed: dict[str, str],
) -> None:
    ended = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], installed)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout


def test_the_scheme_of_a_backend_from_outside_is_listed_among_the_known_ones(
    installed: dict[str, str],
) -> None:
    source = "from fairlead import App; App('tyo://a:secret@b').store"
    ended = run([sys.executable, "-c", source], installed)
    assert "of no known kind; use" in ended.stderr and "toy://any-name" in ended.stderr
    assert "install the package that registers tyo://" in ended.stderr
    assert "secret" not in ended.stderr.splitlines()[-1]
