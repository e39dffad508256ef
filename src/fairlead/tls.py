"""TLS for drivers that take a context of Python: the parameters of a URL, with the names that
PostgreSQL gives them, and the causes of a failed handshake with their cures."""

from __future__ import annotations

import os.path
import re
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from fairlead.errors import ConfigurationError

PARAMETERS = ("sslmode", "sslrootcert", "sslcert", "sslkey")
_MODES = ("disable", "verify-ca", "verify-full")
_RECORDS_OF_TLS = (b"\x15", b"\x16")
"""First bytes of an alert and of a handshake."""

_PROBE_SECONDS = 0.5
"""Longest wait for a server to show whether it has TLS."""

_PROBE_EVERY = 5.0
"""Seconds for which the result of a probe is kept."""

_probed: dict[tuple[tuple[str, int], bool], tuple[float, str | None]] = {}
"""Time of the last probe in monotonic seconds, and its result, by address and our use of TLS."""

_NO_ENCRYPTION_ALONE = ("allow", "prefer", "require")


@dataclass(frozen=True, kw_only=True)
class Cures:
    """How a driver names what a person writes into the URL."""

    authority: str = "sslrootcert=FILE"
    own_certificate: str = "sslcert=FILE and sslkey=FILE"
    any_name: str = "sslmode=verify-ca"
    no_tls: str = "sslmode=disable"
    with_tls: str = "sslmode=verify-full"


@dataclass(frozen=True, kw_only=True)
class Tls:
    """Certificates for connections with TLS."""

    authority: str | None
    """File of the authorities to trust; None means those that the system trusts."""
    certificate: str | None
    """File of our own certificate, for a server that asks for one."""
    key: str | None
    """File of the key of our own certificate, if it is not in the same file."""
    checks_name: bool
    """Whether the certificate of the server must have the host of the URL as a name."""

    @classmethod
    def of(cls, where: str, given: Mapping[str, str]) -> Tls | None:
        """Return the TLS that these parameters ask for; None if they ask for none.

        Raise ConfigurationError, whose text begins with `where`, for a value or a file that cannot
        be used.
        """
        named = [name for name in PARAMETERS if name in given]
        mode = given.get("sslmode", "verify-full" if named else "disable")
        if mode not in _MODES:
            why = " (encryption without a verified server)" if mode in _NO_ENCRYPTION_ALONE else ""
            raise ConfigurationError(
                f"{where}: unknown value of sslmode{why}; write {', '.join(_MODES)}"
            )
        if mode == "disable":
            if named != ["sslmode"][: len(named)]:
                raise ConfigurationError(f"{where}: {named[-1]} needs TLS, so no sslmode=disable")
            return None
        if "sslkey" in given and "sslcert" not in given:
            raise ConfigurationError(f"{where}: sslkey needs the certificate; write sslcert=FILE")
        for name in named:
            if name != "sslmode" and given[name] != "system" and not os.path.isfile(given[name]):
                raise ConfigurationError(
                    f"{where}: {name}: there is no file {given[name]} that this user may read"
                )
        authority = given.get("sslrootcert", "system")
        tls = cls(
            authority=None if authority == "system" else authority,
            certificate=given.get("sslcert"),
            key=given.get("sslkey"),
            checks_name=mode == "verify-full",
        )
        try:
            tls.make_context()
        except OSError as error:
            raise ConfigurationError(
                f"{where}: its certificates cannot be read ({error.strerror or error}); write"
                " sslrootcert, sslcert and sslkey as files of PEM, and the key without a passphrase"
            ) from None
        return tls

    def make_context(self) -> ssl.SSLContext:
        """Return a new context that verifies the server. Raise OSError for a file that cannot be
        used."""
        context = ssl.create_default_context(cafile=self.authority)
        context.check_hostname = self.checks_name
        if self.certificate is not None:
            # Without a password here, OpenSSL would ask for one at the terminal.
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
        return context


def explain(failure: str, cures: Cures | None = None) -> str | None:
    """Return cause and cure of a failed handshake that no retry can mend, from the text of the
    failure; None for another failure. `cures`: the names of the driver."""
    cures = cures or Cures()
    causes = {
        r"hostname mismatch|ip address mismatch|not valid for": "the server's certificate has"
        f" another name than the URL: use a host that it names, or {cures.any_name}",
        r"self.signed|unable to get": "the server's certificate is of an unknown authority: name"
        f" the file of the authority, {cures.authority}",
        r"has expired": "the server's certificate has expired: renew it",
        r"certificate.verify.failed": "the server's certificate is not valid: the server needs"
        " another one",
        # Cassandra reports an unknown certificate as an internal error, Redis as one of decryption.
        r"alert.(certificate|bad.certificate|unknown.ca|handshake|decrypt|internal)": "the server"
        f" refused our certificate: name one that it accepts, {cures.own_certificate}",
        r"wrong.version.number|record.layer.failure|unknown.protocol|has.no.TLS": "the server has"
        f" no TLS on this port: use its port for TLS, or {cures.no_tls}",
        "asks for TLS": f"the server asks for TLS on this port: write {cures.with_tls}",
    }
    return next(
        (cure for sign, cure in causes.items() if re.search(sign, failure, re.IGNORECASE)), None
    )


def find_mismatch(
    addresses: Iterable[tuple[str, int]], uses_tls: bool, greeting: bytes
) -> str | None:
    """Return a failure for `explain` if one of the servers asks for TLS and we do not use it, or
    the other way round; None if none shows it. Block for a second per server at most, and not again
    within _PROBE_EVERY seconds.

    Most drivers only report that the connection was lost, or that no response came. `greeting`: a
    request that a server without TLS responds to, whoever sends it.
    """
    for address in addresses:
        probed_at, found = _probed.get((address, uses_tls), (float("-inf"), None))
        if time.monotonic() - probed_at >= _PROBE_EVERY:
            found = None
            with suppress(OSError):
                if uses_tls and _responds(address, greeting):
                    found = f"{address[0]}:{address[1]} has no TLS"
                elif not uses_tls and _has_tls(address):
                    found = f"{address[0]}:{address[1]} asks for TLS"
            _probed[address, uses_tls] = time.monotonic(), found
        if found is not None:
            return found
    return None


def _has_tls(address: tuple[str, int]) -> bool:
    """Return whether a server takes part in a handshake. Raise OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent but the handshake
    with socket.create_connection(address, _PROBE_SECONDS) as connection:
        try:
            context.wrap_socket(connection).close()
        except ssl.SSLError as error:
            return "ALERT" in (error.reason or "")
        return True


def _responds(address: tuple[str, int], greeting: bytes) -> bool:
    """Return whether a server responds, and not with an alert of TLS. Raise OSError."""
    with socket.create_connection(address, _PROBE_SECONDS) as connection:
        connection.sendall(greeting)
        response = connection.recv(16)
        return bool(response) and response[:1] not in _RECORDS_OF_TLS
