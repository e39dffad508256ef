"""The README's first commands, typed word for word in a fresh clone.

Replaced: `pip install .` installs with `--no-build-isolation --no-deps`, because a test downloads
nothing: the new environment sees the libraries of the tests' one. `make demo` and `make test` print
their commands only; the demo's command is then run. The worker ends when no task is left.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests import tiers
from tests.end_to_end.test_command_line import ROOT
from tests.end_to_end.test_docs import read

pytestmark = tiers.NIGHTLY("builds and installs the package")

COMMANDS = {
    "pip": 'exec python -m pip "$@" --quiet --no-build-isolation --no-deps',
    "make": 'exec "$MAKE" --dry-run "$@"',
    "fairlead": 'case "$1" in worker) set -- "$@" --until-empty ;; esac\nexec "$VENV/bin/fairlead" "$@"',
}
"""Shell scripts that replace real commands."""


def test_the_readmes_commands_work_in_a_fresh_clone(tmp_path: Path) -> None:
    clone, venv, commands = (tmp_path / name for name in ("clone", "venv", "commands"))
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "tests.pth").write_text(sysconfig.get_path("purelib"))
    commands.mkdir()
    for name, script in COMMANDS.items():
        (commands / name).write_text(f"#!/bin/sh\n{script}\n")
        (commands / name).chmod(0o755)
    known = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment = known | {
        "PATH": f"{commands}:{venv}/bin:{os.environ['PATH']}",
        "VENV": str(venv),
        "MAKE": "/usr/bin/make",
    }

    def type_in(text: str) -> str:
        done = subprocess.run(
            ["bash", "-e", "-c", text],
            cwd=clone,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    printed = []
    for step in read(clone / "README.md"):
        if step.file is not None:
            (clone / step.file).write_text(step.text)
        elif step.kind == "sh":
            printed.append(type_in(step.text))
    first, then = printed
    assert re.search(r"^\S*fairlead demo$", first, re.MULTILINE)
    where = type_in("python -c 'import fairlead; print(fairlead.__file__)'").strip()
    assert Path(where).is_relative_to(packages)
    assert then.count("paying") == 1002
    assert "submitted" in type_in("fairlead queues")  # finds the file that the script made
    assert len(type_in("fairlead demo").splitlines()) > 5
