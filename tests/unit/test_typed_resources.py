"""Type checkers let a submit leave out resources, and still check its arguments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CODE = """
from typing import Annotated
import fairlead

app = fairlead.App("sqlite:///never.db")

class Client: ...

@app.task
async def pay(
    partner: str, client: Annotated[Client, fairlead.Resource(Client)] = fairlead.INJECTED
) -> str:
    return partner

async def direct() -> str:
    return await pay("acme", Client())

pay.submit(partner="acme")
pay.submit(partner=3)  # wrong
pay.submit()  # wrong
pay("acme", client="mine")  # wrong
"""


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_type_checker_finds_exactly_the_wrong_lines(checker: str, tmp_path: Path) -> None:
    pytest.importorskip(checker)
    (tmp_path / "typed.py").write_text(CODE)
    own = {
        "mypy": ["--strict", "--config-file="],
        "pyright": ["--pythonpath", sys.executable],
    }[checker]
    done = subprocess.run(
        [sys.executable, "-m", checker, *own, "typed.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if checker == "pyright" and "typed.py" not in done.stdout:
        pytest.skip(f"pyright cannot fetch its program: {done.stderr[-300:]}")
    found = {
        int(line.split(":")[1])
        for line in done.stdout.splitlines()
        if ": error" in line or " - error" in line
    }
    wrong = {n for n, line in enumerate(CODE.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, done.stdout + done.stderr
