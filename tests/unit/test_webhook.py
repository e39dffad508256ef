"""Alerts reach a webhook at least once and in order, whatever its server does meanwhile."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from fairlead import ConfigurationError
from fairlead.clock import MICROS
from fairlead.pipeline.alerts import webhook
from fairlead.pipeline.alerts.webhook import SIGNATURE, Notice, Webhook
from fairlead.pipeline.incidents.watch import Alert
from fairlead.pipeline.jobs.alerts import notice_of


class Listener:
    """A server with scripted responses that records the accepted requests."""

    def __init__(self) -> None:
        self.took: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.answers: list[int] = []
        self.location = ""
        self.asked = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.asked += 1
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status = outer.answers.pop(0) if outer.answers else 204
                if status == 204:
                    outer.took.append(json.loads(body))
                    outer.bodies.append(body)
                    outer.headers.append(dict(self.headers))
                if not status:
                    self.wfile.write(b"no HTTP\r\n")
                    return
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", outer.location)
                self.end_headers()

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?token=secret"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def texts(self) -> list[str]:
        return [each["kind"] for each in self.took]


@contextmanager
def listening() -> Iterator[Listener]:
    listener = Listener()
    try:
        yield listener
    finally:
        listener.server.shutdown()
        listener.thread.join()
        listener.server.server_close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as listener:
        yield listener


def notice(kind: str) -> Notice:
    return notice_of(Alert(kind, "payouts", "*", 1_790_000_000_000_000, 1_790_000_010_000_000))


def test_an_alert_arrives_signed_with_a_text_and_its_fields(
    listener: Listener, tmp_path: Path
) -> None:
    hook = Webhook(listener.url, tmp_path / "waiting.json", "key")
    notice = notice_of(
        Alert("flood", "payouts", "acme", 1_790_000_000_000_000, 1_790_000_010_000_000, tasks=400)
    )
    assert hook.send([notice]) == 0
    (got,) = listener.took
    assert got["text"] == "flood: acme in queue payouts, since 2026-09-21T14:13:20+00:00"
    assert (got["state"], got["tasks"]) == ("open", 400)
    headers = {name.lower(): value for name, value in listener.headers[0].items()}
    assert headers["idempotency-key"] == f"{notice.incident_id}/open/2026-09-21T14:13:30+00:00"
    sent_at, digest = re.fullmatch(
        r"t=(\d+),v1=([0-9a-f]{64})", headers[SIGNATURE.lower()]
    ).groups()
    assert abs(int(sent_at) - time.time()) < 60
    signed = sent_at.encode() + b"." + listener.bodies[0]
    assert digest == hmac.new(b"key", signed, hashlib.sha256).hexdigest()


def test_the_end_of_an_alert_has_the_same_id(listener: Listener) -> None:
    start = 1_790_000_000_000_000
    raised, over = (
        notice_of(Alert("stall", "q", "*", start, start + n, bool(n))) for n in (0, 90_000_000)
    )
    assert raised.incident_id == over.incident_id
    assert (raised.state, over.state) == ("open", "over")


@pytest.mark.parametrize("trouble", [500, 503, 429, 408])
def test_alerts_that_fail_to_arrive_are_repeated_and_arrive_in_order(
    listener: Listener, tmp_path: Path, trouble: int
) -> None:
    hook = Webhook(listener.url, tmp_path / "waiting.json")
    listener.answers = [204, trouble, trouble]
    assert hook.send([notice("a"), notice("b"), notice("c")]) == 2
    assert hook.send([notice("d")]) == 3
    assert hook.send([]) == 0
    assert listener.texts == ["a", "b", "c", "d"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_an_alert_is_not_lost_to_a_redirect_and_its_signature_stays_with_the_host(
    listener: Listener, tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    hook = Webhook(listener.url, tmp_path / "waiting.json", "key")
    with listening() as other:
        listener.answers, listener.location = [status, status], other.url
        assert hook.send([notice("a")]) == 1
        assert hook.send([]) == 1
        assert other.asked == 0
    assert "redirects are not followed" in str([vars(one) for one in caplog.records])
    assert hook.send([]) == 0
    assert listener.texts == ["a"]


def test_a_user_in_the_url_is_sent_as_basic_authentication(
    listener: Listener, tmp_path: Path
) -> None:
    hook = Webhook(listener.url.replace("//", "//ann:p%40ss@"), tmp_path / "waiting.json")
    assert hook.send([notice("a")]) == 0
    sent = listener.headers[0]["Authorization"].removeprefix("Basic ")
    assert base64.b64decode(sent) == b"ann:p@ss"


def test_alerts_that_the_server_refuses_are_dropped(
    listener: Listener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    hook = Webhook(listener.url, tmp_path / "waiting.json")
    listener.answers = [404]
    assert hook.send([notice("a"), notice("b")]) == 0
    assert listener.texts == ["b"]
    assert "refuses" in caplog.text and "secret" not in caplog.text


def test_waiting_alerts_survive_a_crash(tmp_path: Path) -> None:
    with listening() as closed:
        url = closed.url
    away = Webhook(url, tmp_path / "waiting.json")
    assert away.send([notice("a"), notice("b")]) == 2
    with listening() as back:
        assert Webhook(back.url, tmp_path / "waiting.json").send([]) == 0
        assert back.texts == ["a", "b"]


class Clock:
    """A clock that a test sets, in seconds since 1970."""

    def __init__(self) -> None:
        self.seconds = 1_790_000_000.0

    def now(self) -> float:
        return self.seconds


def test_an_alert_is_given_up_after_a_day_with_an_error_that_names_it(
    listener: Listener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, file = Clock(), tmp_path / "waiting.json"
    hook = Webhook(listener.url, file, now=clock.now)
    listener.answers = [500] * 5
    assert hook.send([notice("a")]) == 1
    clock.seconds += 3600
    assert hook.send([notice("b")]) == 2
    clock.seconds += 23 * 3600 - 1
    assert Webhook(listener.url, file, now=clock.now).send([]) == 2  # also after a restart
    hook = Webhook(listener.url, file, now=clock.now)
    clock.seconds += 1
    assert hook.send([]) == 1
    (error,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert (error.seconds, error.incident) == (86_400, notice("a").incident_id)
    assert error.alert == notice("a").text and "given up" in error.message
    assert "secret" not in str(vars(error))
    assert hook.send([notice("a")]) == 1  # a repeated batch
    assert hook.send([]) == 0
    assert listener.texts == ["b"]


@pytest.mark.parametrize("seconds", [0, 60])
def test_the_time_after_which_an_alert_is_given_up_can_be_set(
    listener: Listener, tmp_path: Path, seconds: int
) -> None:
    clock = Clock()
    hook = Webhook(listener.url, tmp_path / "w.json", give_up_seconds=seconds, now=clock.now)
    listener.answers = [500, 500]
    assert hook.send([notice("a")]) == (1 if seconds else 0)
    clock.seconds += 60
    hook.send([])
    assert Webhook(listener.url, tmp_path / "w.json", now=clock.now).send([]) == 0
    assert listener.texts == []


def test_an_old_alert_is_tried_once_more_before_it_is_given_up(
    listener: Listener, tmp_path: Path
) -> None:
    clock = Clock()
    hook = Webhook(listener.url, tmp_path / "waiting.json", now=clock.now)
    listener.answers = [500]
    assert hook.send([notice("a")]) == 1
    clock.seconds += 30 * 86_400  # for example because this process was stopped
    assert hook.send([]) == 0
    assert listener.texts == ["a"]


def test_a_clock_that_was_set_back_makes_no_alert_wait_for_ever(
    listener: Listener, tmp_path: Path
) -> None:
    clock, file = Clock(), tmp_path / "waiting.json"
    listener.answers = [500] * 3
    assert Webhook(listener.url, file, now=clock.now).send([notice("a")]) == 1
    clock.seconds -= 365 * 86_400
    hook = Webhook(listener.url, file, now=clock.now)
    assert hook.send([]) == 1
    clock.seconds += 86_400
    assert hook.send([]) == 0
    assert listener.texts == []


def test_an_alert_of_a_repeated_batch_waits_only_once(tmp_path: Path) -> None:
    with listening() as closed:
        url = closed.url
    hook = Webhook(url, tmp_path / "waiting.json")
    assert hook.send([notice("a")]) == 1
    assert hook.send([notice("a")]) == 1


def test_an_accepted_alert_is_not_posted_again_with_a_repeated_batch(
    listener: Listener, tmp_path: Path
) -> None:
    start = 1_790_000_000_000_000
    raised, over, again = (
        notice_of(Alert("stall", "q", "*", start, start + seconds * MICROS, is_over))
        for seconds, is_over in ((10, False), (10, True), (60, False))
    )
    Webhook(listener.url, tmp_path / "known.json").send([raised])
    hook = Webhook(listener.url, tmp_path / "known.json")  # a new process after a crash
    hook.send([raised, over])
    hook.send([raised, over])
    assert [each["state"] for each in listener.took] == ["open", "over"]
    hook.send([again])  # the same incident continues
    assert [each["state"] for each in listener.took] == ["open", "over", "open"]


def test_only_the_newest_alerts_are_remembered(
    listener: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "MOST_REMEMBERED", 2)
    hook = Webhook(listener.url, tmp_path / "known.json")
    for kind in "abcab":
        hook.send([notice(kind)])
    assert listener.texts == ["a", "b", "c", "a", "b"]
    hook.send([notice("b")])
    assert len(listener.took) == 5


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://host/x", "hook", "http://", "http://[x", "http://h:abc/"]
)
def test_an_invalid_address_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="https://"):
        Webhook(url, tmp_path / "waiting.json")


def test_a_response_that_is_not_http_is_an_outage(listener: Listener, tmp_path: Path) -> None:
    hook = Webhook(listener.url, tmp_path / "waiting.json")
    listener.answers = [0]
    assert hook.send([notice("a")]) == 1
    assert hook.send([]) == 0
    assert listener.texts == ["a"]


@pytest.mark.parametrize("login", ["", "user:Gh7mark@"])
def test_the_log_names_the_host_of_the_webhook_without_its_path(
    login: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with listening() as closed:
        url = closed.url.replace("http://", f"http://{login}").replace("/hook", "/Gh7mark")
    hook = Webhook(f"{url}&key=Gh7mark", tmp_path / "waiting.json")
    with caplog.at_level("DEBUG"):
        assert hook.send([notice("a")]) == 1
    assert caplog.records[-1].webhook == f"http://127.0.0.1:{closed.server.server_port}"
    assert "Gh7mark" not in str([vars(record) for record in caplog.records])
