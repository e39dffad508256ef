"""The README's example, as it stands there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.end_to_end.test_command_line import ROOT, environment, fairlead


def test_the_readmes_twenty_lines_do_what_they_say(tmp_path: Path) -> None:
    (example,) = re.findall(
        r"```python\n(# shop\.py.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    (tmp_path / "shop.py").write_text(example)
    subprocess.run(
        [sys.executable, "shop.py"], cwd=tmp_path, env=environment(), check=True, timeout=60
    )
    (queue,) = json.loads(fairlead(tmp_path, "queues", "--url", "sqlite:///tasks.db", "--json"))
    assert queue["submitted"] == 1003
    said = fairlead(tmp_path, "worker", "shop:app", "--until-empty")
    assert said.count("paying") == 1002
    (queue,) = json.loads(fairlead(tmp_path, "queues", "--url", "sqlite:///tasks.db", "--json"))
    assert (queue["submitted"], queue["processing"], queue["error"]) == (0, 0, 0)
