"""Failures of Kafka: those that pass, and those that need a person.

A failure that passes becomes StoreUnavailable, and the caller tries again: leaders and coordinators
that move or load, too few replicas, quotas, storage, the network, and every code that is not listed
here. Kafka refuses what ConfigurationError names, until a person changes something.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException

from fairlead.errors import ConfigurationError, FairleadError, StoreUnavailable
from fairlead.tls import Cures, explain, find_mismatch

_GRANTS = "docs/how-to/kafka.md has the rights that each role needs"
_LOGIN = "check user and password in the URL, and its options security.protocol and sasl.mechanism"
_SETTINGS = "correct the setting in the URL, or the broker's policy"

_CURES_OF_TLS = Cures(
    authority="ssl.ca.location=FILE",
    own_certificate="ssl.certificate.location=FILE and ssl.key.location=FILE",
    any_name="ssl.endpoint.identification.algorithm=none",
    no_tls="security.protocol=SASL_PLAINTEXT or PLAINTEXT",
    with_tls="security.protocol=SASL_SSL or SSL, and ssl.ca.location=FILE",
)

_UNVERIFIED = (
    "the certificate is of an unknown authority or has another name than the URL: name the file of"
    f" the authority, {_CURES_OF_TLS.authority}, and use a host that the certificate names, or"
    f" {_CURES_OF_TLS.any_name}"
)
"""librdkafka does not say which of the two it is."""

REFUSED: Mapping[int, str] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _GRANTS,
    KafkaError.GROUP_AUTHORIZATION_FAILED: _GRANTS,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: _GRANTS,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _GRANTS,
    KafkaError.SASL_AUTHENTICATION_FAILED: _LOGIN,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: _LOGIN,
    KafkaError.ILLEGAL_SASL_STATE: _LOGIN,
    KafkaError.SECURITY_DISABLED: _LOGIN,
    KafkaError._AUTHENTICATION: _LOGIN,
    KafkaError.INVALID_CONFIG: _SETTINGS,
    KafkaError.POLICY_VIOLATION: _SETTINGS,
    KafkaError.TOPIC_EXCEPTION: _SETTINGS,
    KafkaError.UNSUPPORTED_VERSION: "upgrade the brokers to Kafka 2.8 or later",
}
"""Cures for what Kafka refuses, by code."""

_CURES: Mapping[int, str] = {
    KafkaError.INVALID_REPLICATION_FACTOR: "start more brokers, or lower replication= in the URL",
    KafkaError.NOT_ENOUGH_REPLICAS: "start the brokers that are down: the topic has fewer in-sync"
    " replicas than its min.insync.replicas",
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "start the brokers that are down",
    KafkaError.THROTTLING_QUOTA_EXCEEDED: "raise the quota of this client",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "the topic is being created, or was deleted",
}
"""Hints for failures that pass, by code."""

_REFUSAL_SECONDS = 15.0
"""Seconds for which a refused login explains later failures of the same client."""

_API_VERSIONS = b"\0\0\0\x0e" + b"\0\x12\0\0" + b"\0\0\0\1" + b"\0\4tls?"
"""A request of the versions of requests, which needs no login."""

_VAGUE = (
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._WAIT_COORD,
)
"""Codes by which librdkafka reports that it has no connection, without the reason."""


def is_refused(error: KafkaError) -> bool:
    """Return whether a person must change something before Kafka does what was asked."""
    return _cure_of_refusal(error) is not None


def _cure_of_refusal(error: KafkaError) -> str | None:
    text = error.str() or ""
    if error.code() in (KafkaError._SSL, KafkaError._TRANSPORT) and "SSL" in text:
        # A broker refuses our certificate after the handshake, so while librdkafka reads.
        is_unverified = "certificate verify failed" in text
        return _UNVERIFIED if is_unverified else explain(text, _CURES_OF_TLS)
    return REFUSED.get(error.code())


def refusal(location: str, missing: str) -> str:
    """Return the text of an error for missing rights."""
    return f"{location} refused: no right to {missing}; {_GRANTS}"


def translate(error: KafkaError, location: str) -> FairleadError:
    """Return Fairlead's error for an error of Kafka."""
    text, code = error.str(), error.code()
    if (cure := _cure_of_refusal(error)) is not None:
        return ConfigurationError(f"{location} refused: {text}; {cure}")
    hint = f"; {_CURES[code]}" if code in _CURES else ""
    return StoreUnavailable(f"{location}: {text}{hint}")


class Refusals:
    """The last refused login or handshake of a client, which librdkafka reports to `error_cb` only.
    Later calls of the client just time out."""

    def __init__(self, brokers: Sequence[tuple[str, int]], uses_tls: bool) -> None:
        """`brokers`: those that may be asked whether they use TLS as we do (`uses_tls`)."""
        self._brokers = brokers
        self._uses_tls = uses_tls
        self._error: KafkaError | None = None
        self._at = float("-inf")

    def __call__(self, error: KafkaError) -> None:
        """Note an error of the client, as its `error_cb`."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            mismatch = find_mismatch(self._brokers, self._uses_tls, _API_VERSIONS)
            if mismatch is not None:
                error = KafkaError(KafkaError._SSL, f"SSL: {mismatch}")
        if is_refused(error):
            self._error, self._at = error, time.monotonic()

    def explain(self, error: KafkaError) -> KafkaError:
        """Return the refusal behind an error, or the error itself."""
        is_recent = time.monotonic() - self._at < _REFUSAL_SECONDS
        if error.code() in _VAGUE and self._error is not None and is_recent:
            return self._error
        return error

    def translate(self, error: KafkaException | KafkaError, location: str) -> FairleadError:
        """Return Fairlead's error for an error of this client."""
        found = error.args[0] if isinstance(error, KafkaException) else error
        if not isinstance(found, KafkaError):
            return StoreUnavailable(f"{location}: {found}")
        return translate(self.explain(found), location)
