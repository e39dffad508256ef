"""Signed sessions of viewers: the cookie, the CSRF token that belongs to it, and notices.

Nothing is kept on the server but a key. Values in, values out. Source: OWASP Cross-Site Request
Forgery Prevention Cheat Sheet (signed double-submit tokens, bound to a session).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass

SESSION_SECONDS = 12 * 3600
"""Seconds after which a viewer logs in again."""

LONGEST_COOKIE = 2000
"""Maximum characters of a cookie that is read."""


@dataclass(frozen=True)
class Session:
    """One session of a viewer."""

    id: str
    is_logged_in: bool
    """Whether the viewer has shown the token; without it, the session only carries a CSRF token."""
    ends_at: int
    """Seconds since the epoch."""


class Signer:
    """Signs sessions and notices with a key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def new_session(self, is_logged_in: bool, now: float) -> Session:
        """Return a new session. `now`: seconds since the epoch."""
        return Session(secrets.token_urlsafe(18), is_logged_in, int(now) + SESSION_SECONDS)

    def cookie(self, session: Session) -> str:
        """Return the value of a session's cookie."""
        return self.sign("session", f"{session.id}.{int(session.is_logged_in)}.{session.ends_at}")

    def session(self, cookie: str, now: float) -> Session | None:
        """Return the session of a cookie; None if it is not signed with this key, or has ended.
        `now`: seconds since the epoch."""
        text = self.signed("session", cookie)
        if text is None:
            return None
        id, is_logged_in, ends_at = text.split(".")
        session = Session(id, is_logged_in == "1", int(ends_at))
        return session if session.ends_at > now else None

    def csrf_token(self, session: Session, viewer: str) -> str:
        """Return the token that every unsafe request of this viewer in this session carries."""
        return self._digest("csrf", f"{session.id}\0{viewer}".encode(errors="surrogatepass"))

    def sign(self, purpose: str, text: str) -> str:
        """Return a text with its signature. A signature holds for one purpose only."""
        data = text.encode()
        return (
            f"{base64.urlsafe_b64encode(data).decode().rstrip('=')}.{self._digest(purpose, data)}"
        )

    def signed(self, purpose: str, value: str) -> str | None:
        """Return the text that was signed for this purpose; None if it was not."""
        if len(value) > LONGEST_COOKIE or not value.isascii():
            return None
        encoded, _, digest = value.rpartition(".")
        try:
            data = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        except (binascii.Error, ValueError):
            return None
        is_ours = hmac.compare_digest(self._digest(purpose, data).encode(), digest.encode())
        return data.decode() if is_ours else None

    def _digest(self, purpose: str, data: bytes) -> str:
        return hmac.digest(self._key, purpose.encode() + b"\0" + data, hashlib.sha256).hex()


def key_of(*secrets: str) -> bytes:
    """Return the key of the sessions that belong to all these secrets."""
    found = b"fairlead console"
    for secret in secrets:
        found = hmac.digest(secret.encode(), found, hashlib.sha256)
    return found


def is_same_secret(given: str, expected: str) -> bool:
    """Return whether two secrets are equal, in a time that says nothing about either."""
    digests = [hashlib.sha256(each.encode(errors="surrogatepass")) for each in (given, expected)]
    return hmac.compare_digest(digests[0].digest(), digests[1].digest())
