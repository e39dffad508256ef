"""Send alerts to a URL in order, each at least once, also after restarts and outages of the URL,
until the URL has failed for too long. An alert is sent twice only after a crash between its arrival
and the record of it."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import msgspec

from fairlead.errors import ConfigurationError
from fairlead.model.reading import json_reader
from fairlead.pipeline import durable
from fairlead.urls import PERCENT_CODES, hosts_of, shown_url

log = logging.getLogger("fairlead.alerts")
for library in ("httpx", "httpcore"):  # their lines show whole URLs, with tokens
    logging.getLogger(library).setLevel(logging.WARNING)

RESPONSE_SECONDS = 5.0
"""Seconds for the URL to respond to one alert."""

MOST_WAITING = 1000
"""Maximum number of alerts that wait for a URL that does not respond; the oldest are dropped
first."""

GIVE_UP_SECONDS = 24 * 3600
"""Seconds for which an alert waits by default."""

MOST_REMEMBERED = 1000
"""Maximum number of delivered alerts in the file, the newest ones."""

SIGNATURE = "X-Fairlead-Signature"


class Notice(msgspec.Struct, frozen=True):
    """Body of a request, as JSON. Instants are in RFC 3339."""

    incident_id: str
    """Id of the incident, the same in the notice of its end."""
    state: str
    """State of the incident: open or over."""
    kind: str
    queue: str
    subject: str
    started_at: str
    noticed_at: str
    """Instant of the detection, or of the end."""
    tasks: int
    text: str


class Waiting(msgspec.Struct, frozen=True):
    """An alert that is not delivered yet."""

    since: int
    """Beginning of the wait, in seconds since 1970."""
    notice: Notice


class Deliveries(msgspec.Struct):
    """Waiting and delivered alerts, stored in a file."""

    waiting: list[Waiting] = []
    taken: list[tuple[str, str, str]] = []
    """(incident_id, state, noticed_at) of the last alerts that were delivered, refused or given
    up."""

    def mark_taken(self, notice: Notice) -> None:
        """Remember the alert as one that is not to be sent again."""
        self.taken.append(_key(notice))
        del self.taken[:-MOST_REMEMBERED]


_decode = json_reader(Deliveries)


def load(file: Path) -> Deliveries:
    """Return the alerts of a file, none if it does not exist. Raise ConfigurationError for a file
    that cannot be read."""
    try:
        return _decode(file.read_bytes())
    except FileNotFoundError:
        return Deliveries()
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(
            f"{file} cannot be read: {error}; remove the file, the alerts in it are lost"
        ) from error


def _key(notice: Notice) -> tuple[str, str, str]:
    return notice.incident_id, notice.state, notice.noticed_at


def signature(secret: str, seconds: int, body: bytes) -> str:
    """Return `t=SECONDS,v1=HEX`: the time of the request (seconds since 1970), and the HMAC-SHA256
    of the time, a dot and the body. A receiver that refuses old times is safe from replays.

    Source: the signatures of Stripe's webhooks.
    """
    digest = hmac.new(secret.encode(), b"%d." % seconds + body, hashlib.sha256).hexdigest()
    return f"t={seconds},v1={digest}"


class Webhook:
    """Sender to one URL. A file stores the waiting and the last delivered alerts."""

    def __init__(
        self,
        url: str,
        file: Path,
        secret: str | None = None,
        *,
        give_up_seconds: float = GIVE_UP_SECONDS,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Load the alerts of the file, if it exists. Raise ConfigurationError for a URL that is not
        HTTP, or a file that cannot be read.

        secret: key of the signature in the header SIGNATURE; see `signature`. A user and password
        in the URL are sent as HTTP basic authentication.

        give_up_seconds: time after which a waiting alert is dropped, at the next failed attempt.
        now: clock, in seconds since 1970.
        """
        try:
            parts = urlsplit(url)
            is_usable = parts.port != 0 and bool(httpx.URL(url).host)
            hosts_of("webhook", parts.netloc.rpartition("@")[2], 443)
        except (ValueError, httpx.InvalidURL, ConfigurationError):
            is_usable = False  # a bracket, a host or a port that cannot be read
        if not is_usable or parts.scheme not in ("http", "https"):
            raise ConfigurationError(
                f"webhook: use a URL such as https://alerts.example/hook, and {PERCENT_CODES}"
            )
        self._url = url
        # The path may be a secret too, as that of Slack is.
        origin = f"{parts.scheme}://{parts.netloc}"
        self._host = shown_url(url if "@" in f"{parts.path}{parts.query}" else origin)
        self._file = file
        self._secret = secret
        self._give_up_seconds = give_up_seconds
        self._now = now
        # A redirect would turn the request into a GET, without the alert, at another host.
        self._client = httpx.Client(timeout=RESPONSE_SECONDS, follow_redirects=False)
        self._known = load(file)
        # A clock that was set back makes no alert wait for longer.
        self._known.waiting = [
            Waiting(min(each.since, int(now())), each.notice) for each in self._known.waiting
        ]
        self._is_down = False

    def send(self, notices: Sequence[Notice]) -> int:
        """Post these alerts after the waiting ones. Return how many alerts still wait."""
        known, now = self._known, int(self._now())
        # A repeated batch has alerts that wait already, or were delivered.
        handled = {*known.taken, *(_key(each.notice) for each in known.waiting)}
        known.waiting += [Waiting(now, each) for each in notices if _key(each) not in handled]
        if not known.waiting:
            return 0
        if (dropped := len(known.waiting) - MOST_WAITING) > 0:
            del known.waiting[:dropped]
            log.error(
                "alerts were dropped, because too many wait for the webhook",
                extra={"webhook": self._host, "alerts": dropped},
            )
        self._save()  # before the delivery, so that a crash loses none
        while known.waiting and self._post(known.waiting[0].notice):
            known.mark_taken(known.waiting.pop(0).notice)
            self._save()  # after a crash before this line, the alert is sent again
        if old := [each for each in known.waiting if now - each.since >= self._give_up_seconds]:
            for each in old:
                log.error(
                    "an alert was given up, because the webhook has failed for too long",
                    extra={
                        "webhook": self._host,
                        "seconds": now - each.since,
                        "incident": each.notice.incident_id,
                        "alert": each.notice.text,
                    },
                )
                known.mark_taken(each.notice)
                known.waiting.remove(each)
            self._save()
        return len(known.waiting)

    def _post(self, notice: Notice) -> bool:
        """Return whether the alert is dealt with: taken, or refused for good."""
        body = msgspec.json.encode(notice)
        headers = {"Content-Type": "application/json", "Idempotency-Key": "/".join(_key(notice))}
        if self._secret:
            headers[SIGNATURE] = signature(self._secret, int(self._now()), body)
        try:
            status = self._client.post(self._url, content=body, headers=headers).status_code
        except httpx.HTTPError as error:
            return self._wait(str(error) or type(error).__name__)
        if 200 <= status < 300:
            self._is_down = False
            return True
        if status in (408, 429) or status >= 500:
            return self._wait(f"status {status}")
        if status < 400:
            return self._wait(f"status {status}: redirects are not followed; give the URL itself")
        log.error(
            "the webhook refuses an alert",
            extra={"webhook": self._host, "status": status, "alert": notice.text},
        )
        return True

    def _wait(self, error: str) -> bool:
        if not self._is_down:
            self._is_down = True
            log.warning(
                "the webhook is unavailable; alerts wait",
                extra={"webhook": self._host, "error": error},
            )
        return False

    def _save(self) -> None:
        durable.folder(self._file.parent)
        durable.write(
            self._file, lambda temporary: temporary.write_bytes(msgspec.json.encode(self._known))
        )
