"""A sender of alerts is killed with SIGKILL at each of its steps: no alert is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests import tiers
from tests.end_to_end.test_command_line import ROOT, environment

pytest.importorskip("httpx", reason="needs the extra pipeline")


class Hook(ThreadingHTTPServer):
    """A webhook that records each whole request by its path, with its idempotency key."""

    def __init__(self) -> None:
        self.took: dict[str, list[tuple[str, str]]] = defaultdict(list)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = self.rfile.read(length)
                if len(body) == length:
                    key = self.headers["Idempotency-Key"]
                    outer.took[self.path].append((json.loads(body)["incident_id"], key))
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...

        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: the other end was killed."""


@pytest.mark.parametrize("distance", [11, pytest.param(1, marks=tiers.FULL("all steps"))])
@pytest.mark.parametrize("kind", ["fresh", "waiting"])
def test_a_sender_killed_at_any_step_delivers_each_alert_at_least_once(
    kind: str, distance: int, tmp_path: Path
) -> None:
    with Hook() as hook:
        thread = threading.Thread(target=hook.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{hook.server_port}"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "tests.end_to_end.alert_sender"),
                *(url, str(tmp_path), kind, str(distance)),
            ],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
        )
        hook.shutdown()
        thread.join()
    assert done.returncode == 0, done.stderr
    steps = int(done.stdout)
    assert steps > 200  # or the steps are not seen any more
    twice = 0
    for step in range(1, steps + 1, distance):
        taken = hook.took[f"/{kind}/{step}"]
        times = Counter(incident for incident, _ in taken)
        assert times.keys() == {"id-0", "id-1"}, step
        assert len(set(taken)) == 2, step  # a repeated alert has the same key
        assert sum(times.values()) <= 3, step
        twice += sum(times.values()) == 3
        # In order, whatever was sent twice.
        assert [incident for incident, _ in taken] == sorted(incident for incident, _ in taken)
    print(f"{kind}: {steps - 1} steps, killed at each {distance}., {twice} alerts arrived twice")
    assert twice
