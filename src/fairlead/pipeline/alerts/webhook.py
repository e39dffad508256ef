"""Alerts to somebody's URL: each at least once, in order, also over restarts and while the URL does not answer."""

from __future__ import annotations

import hashlib
import hmac
import logging
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from fairlead.errors import ConfigurationError
from fairlead.pipeline.lake import durable

log = logging.getLogger("fairlead.alerts")

ANSWER_SECONDS = 5.0
"""For the URL to answer one alert."""

MOST_WAITING = 1000
"""Alerts that wait for a URL that does not answer; the oldest go first."""

SIGNATURE = "X-Fairlead-Signature"


class Notice(msgspec.Struct, frozen=True):
    """What is sent, as JSON. Instants are RFC 3339."""

    incident_id: str
    """The same of the notice that it is over."""
    state: str
    """open or over."""
    kind: str
    queue: str
    subject: str
    started_at: str
    noticed_at: str
    """Of one that is over: when it ended."""
    tasks: int
    text: str


class Webhook:
    """Posts to one URL; what it did not take waits in a file."""

    def __init__(self, url: str, waiting: Path, secret: str | None = None) -> None:
        """`waiting`: the file. `secret`: signs each request: SIGNATURE is then "sha256=" and the HMAC of the body in hex.
        Raises ConfigurationError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError("webhook: use an address as https://alerts.example/hook")
        self._url = url
        self._where = f"{parts.scheme}://{parts.hostname}"
        self._file = waiting
        self._secret = secret
        self._waiting = self._load()
        self._is_away = False

    def send(self, notices: Sequence[Notice]) -> int:
        """Post these behind what waits. Answers how many wait now; they are tried again by the next call."""
        if not notices and not self._waiting:
            return 0
        waiting = [*self._waiting, *(each for each in notices if each not in self._waiting)]
        if dropped := len(waiting) - MOST_WAITING:
            waiting = waiting[max(0, dropped) :]
        if dropped > 0:
            log.error(
                "alerts were dropped: the webhook does not take them", extra={"webhook": self._where, "alerts": dropped}
            )
        self._waiting = waiting
        self._save()  # before: a crash after a post repeats it, one before loses none
        while self._waiting and self._post(self._waiting[0]):
            self._waiting = self._waiting[1:]
        self._save()
        return len(self._waiting)

    def _post(self, notice: Notice) -> bool:
        body = msgspec.json.encode(notice)
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"{notice.incident_id}/{notice.state}"}
        if self._secret:
            digest = hmac.new(self._secret.encode(), body, hashlib.sha256).hexdigest()
            headers[SIGNATURE] = f"sha256={digest}"
        request = urllib.request.Request(self._url, body, headers, method="POST")  # noqa: S310 - checked above
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS):  # noqa: S310
                pass
        except (OSError, ValueError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code not in (408, 429) and error.code < 500:
                log.error(
                    "the webhook refuses an alert",
                    extra={"webhook": self._where, "status": error.code, "alert": notice.text},
                )
                return True
            if not self._is_away:
                self._is_away = True
                log.warning("the webhook is away; alerts wait", extra={"webhook": self._where, "error": str(error)})
            return False
        self._is_away = False
        return True

    def _load(self) -> list[Notice]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=list[Notice])
        except FileNotFoundError:
            return []
        except msgspec.DecodeError as error:
            raise ConfigurationError(
                f"{self._file} cannot be read: {error}; remove it, alerts in it are lost"
            ) from error

    def _save(self) -> None:
        durable.folder(self._file.parent)
        durable.write(self._file, lambda aside: aside.write_bytes(msgspec.json.encode(self._waiting)))
