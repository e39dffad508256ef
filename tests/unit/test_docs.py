"""Pages of the documentation name tests that exist, and README.md stays short."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def test_every_test_named_beside_a_published_failure_exists() -> None:
    page = (ROOT / "tests/PUBLISHED_FAILURES.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)`: `(test_\w+)`", page)
    assert named
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not re.search(rf"def {name}\b", (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert missing == []


def test_the_readme_fits_one_and_a_half_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100


def test_make_help_names_every_target_with_its_text() -> None:
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    targets = [line for line in lines if re.match(r"[a-z][a-z-]*:", line)]
    undocumented = [line for line in targets if "  ## " not in line]
    assert undocumented == ["postgresql:", "pgbouncer:", "java:", "redis:", "chromium:"]


def test_the_extra_all_has_every_extra_of_users() -> None:
    extras = _project()["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(everything.removeprefix("fairlead[").removesuffix("]").split(","))
    assert named == set(extras) - {"all", "dev", "docs", "pytest"}


def test_the_steps_of_the_container_file_have_what_they_name() -> None:
    """No image can be built in tests, so read the steps: files, extras, user and command exist."""
    text = (ROOT / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    steps = [shlex.split(line) for line in text.splitlines() if line and line[0] != "#"]
    copied = [name for step in steps if step[0] == "COPY" for name in step[1:-1]]
    assert {"pyproject.toml", "constraints.txt", "src"} <= set(copied)
    assert all((ROOT / name).exists() for name in copied)
    (extras,) = re.findall(r"/build\[([a-z,]+)\]", text)
    assert set(extras.split(",")) < set(_project()["optional-dependencies"])
    (user,) = (step[1] for step in steps if step[0] == "USER")
    assert user != "root" and re.search(rf"useradd .*{user}", text)
    assert "fairlead" in _project()["scripts"]
    # The first process of a container gets the orphans of handlers, and must reap them.
    assert ["ENTRYPOINT", "[tini,", "--,", "fairlead]"] in steps


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
