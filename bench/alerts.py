"""Alerts: the time from an incident to its notice, and the absence of notices while all goes well.

python bench/alerts.py [--calm 240] [--kills 3] [--json]

Two workers on SQLite, a relay, Kafka, `fairlead pipeline alerts` on Spark and a webhook run as
processes of their own, started as a user starts them. Tenants bring tasks evenly for `--calm`
seconds, in which no notice may come. Then, one after the other and beside the even load: every run
fails for 20 s; one tenant brings 3,000 tasks; both workers are stopped (SIGSTOP) for 40 s. The
measured time runs from the injection to the webhook. Then, `--kills` times, `alerts` is killed
(-9), and another burst of errors comes while it is unavailable. Exit code 1 if an alert was
missing, superfluous or sent twice, or if one of the first three came after more than 30 s."""

import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT), str(ROOT / "src")]

from run import say  # noqa: E402

from services.kafka import KafkaServer  # noqa: E402

GOAL_SECONDS = 30.0
TENANTS = 8
EVERY = 0.5
"""Seconds between two tasks of a tenant."""
PATIENCE = 120.0
QUIET_SECONDS = 30
"""Seconds without errors after which a burst is over. The default of five minutes is too long for
this benchmark."""
AWAY_SECONDS = 20.0
"""Seconds for which every run fails, and for which nobody watches after a kill."""
STOPPED_SECONDS = 40.0
"""Seconds for which the workers are stopped."""


class Webhook:
    """A webhook that keeps the notices it gets."""

    def __init__(self) -> None:
        self.notices: list[tuple[float, dict[str, Any]]] = []
        self._came = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with outer._came:
                    outer.notices.append((time.time(), json.loads(body)))
                    outer._came.notify_all()
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def of(
        self, kind: str, state: str, since: float, started_at: str | None = None
    ) -> tuple[float, str] | None:
        """Return the time of the first notice of this kind and state since `since` (seconds since
        the epoch), and the start of its incident."""
        return next(
            (
                (at, notice["started_at"])
                for at, notice in self.notices
                if at >= since
                and (notice["kind"], notice["state"]) == (kind, state)
                and started_at in (None, notice["started_at"])
            ),
            None,
        )

    def wait(
        self, kind: str, state: str, since: float, started_at: str | None = None
    ) -> float | None:
        """Return the seconds from `since` to the notice; None if none came."""
        with self._came:
            found = self._came.wait_for(lambda: self.of(kind, state, since, started_at), PATIENCE)
        return None if found is None else round(found[0] - since, 1)


class Load:
    """The load of the tenants, in a thread."""

    def __init__(self, pay: Any) -> None:
        self._pay = pay
        self.fails = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(EVERY):
            self._pay.app.submit_many(
                [
                    self._pay.options(fairness_key=f"tenant-{n}").draft(fails=self.fails)
                    for n in range(TENANTS)
                ]
            )


@contextlib.contextmanager
def process(
    *command: str, log: pathlib.Path, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `fairlead ...` until the block ends."""
    paths = os.pathsep.join([str(HERE), str(ROOT / "src")])
    with log.open("ab") as file:
        started = subprocess.Popen(
            [sys.executable, "-m", "fairlead", *command],
            env={**os.environ, **environment, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        yield started
    finally:
        started.send_signal(signal.SIGCONT)
        started.terminate()
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def main() -> int:
    """Start everything, run the benchmark, print the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calm", type=float, default=240.0)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kafka = stack.enter_context(KafkaServer()).create_prefix()
        os.environ["ALERTS_URL"] = url = f"sqlite:///{folder}/tasks.db"
        import alerts_app  # reads the environment

        alerts_app.app.migrate()
        stack.callback(alerts_app.app.close)
        settings = folder / "pipeline.toml"
        settings.write_text(f"[alerts]\nquiet_seconds = {QUIET_SECONDS}\n")
        webhook = Webhook()
        workers = [
            stack.enter_context(process("worker", "alerts_app:app", log=folder / "worker.log"))
            for _ in range(2)
        ]
        stack.enter_context(
            process("pipeline", "relay", "--url", url, "--kafka", kafka, log=folder / "relay.log")
        )
        load = Load(alerts_app.pay)
        stack.callback(load.stop)
        watching = contextlib.ExitStack()
        stack.callback(watching.close)

        def watch() -> subprocess.Popen[bytes]:
            return watching.enter_context(
                process(
                    "pipeline",
                    "alerts",
                    "--kafka",
                    kafka,
                    "--checkpoint",
                    str(folder / "checkpoint"),
                    "--lake",
                    str(folder / "lake"),
                    "--webhook",
                    webhook.url,
                    "--settings",
                    str(settings),
                    "--json",
                    log=folder / "alerts.log",
                )
            )

        try:
            report = run(wanted, webhook, load, workers, watch, alerts_app.pay)
        except BaseException:
            for log in sorted(folder.glob("*.log")):
                say(f"{log.name}: {log.read_text(errors='replace')[-1500:]}")
            raise
    print(json.dumps(report, indent=None if wanted.json else 1), flush=True)
    return 0 if report["is_met"] else 1


def run(
    wanted: Any, webhook: Webhook, load: Load, workers: Any, watch: Any, pay: Any
) -> dict[str, Any]:
    """Return the report."""
    watched = watch()
    say(f"calm for {wanted.calm:g} s")
    with contextlib.suppress(subprocess.TimeoutExpired):
        watched.wait(wanted.calm)  # calm is a span of time
        raise RuntimeError(f"alerts ended by itself with {watched.returncode}")
    report: dict[str, Any] = {
        "calm_seconds": wanted.calm,
        "notices_while_calm": [each["text"] for _, each in webhook.notices],
    }
    began = time.time()
    load.fails = True
    report["error_burst_s"] = webhook.wait("error burst", "open", began)
    say(f"error burst: {report['error_burst_s']} s")
    time.sleep(max(0.0, AWAY_SECONDS - (time.time() - began)))  # runs fail for a span of time
    load.fails = False
    began = time.time()
    pay.app.submit_many(
        [pay.options(fairness_key="tenant-0").draft(fails=False) for _ in range(3000)]
    )
    report["flood_s"] = webhook.wait("flood", "open", began)
    say(f"flood: {report['flood_s']} s")
    began = time.time()
    for worker in workers:
        worker.send_signal(signal.SIGSTOP)
    report["stall_s"] = webhook.wait("stall", "open", began)
    say(f"stall: {report['stall_s']} s")
    # the workers stand still for a span of time
    time.sleep(max(0.0, STOPPED_SECONDS - (time.time() - began)))
    began = time.time()
    for worker in workers:
        worker.send_signal(signal.SIGCONT)
    report["stall_over_s"] = webhook.wait("stall", "over", began)
    say(f"stall over: {report['stall_over_s']} s")
    # A second burst extends the first one, as long as the first is not over.
    report["error_burst_over"] = webhook.of("error burst", "over", 0.0) is not None
    report["after_kill_s"] = []
    for _ in range(wanted.kills):
        # Do not kill right after the webhook: alerts records the sent notice only afterwards, and
        # would repeat it.
        time.sleep(random.random() * 10)  # kill at a random moment
        since = time.time()
        watched.kill()
        watched.wait()
        load.fails = True
        time.sleep(AWAY_SECONDS)  # nobody watches while runs fail
        load.fails = False
        watched = watch()
        report["after_kill_s"].append(webhook.wait("error burst", "open", since))
        say(f"notice after a kill: {report['after_kill_s'][-1]} s, {AWAY_SECONDS:g} s of them away")
        opened = webhook.of("error burst", "open", since)
        webhook.wait("error burst", "over", since, opened and opened[1])
    notices = [
        (each["kind"], each["subject"], each["state"], each["started_at"], each["noticed_at"])
        for _, each in webhook.notices
    ]
    report["notices"] = len(notices)
    report["notices_sent_twice"] = sorted({each for each in notices if notices.count(each) > 1})
    times = [report["error_burst_s"], report["flood_s"], report["stall_s"]]
    report["is_met"] = (
        not report["notices_while_calm"]
        and not report["notices_sent_twice"]
        and all(seconds is not None and seconds <= GOAL_SECONDS for seconds in times)
        and None not in (report["stall_over_s"], *report["after_kill_s"])
    )
    return report


if __name__ == "__main__":
    sys.exit(main())
