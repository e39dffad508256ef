"""Hashing of keys: a hashed lake has keyed digests instead of clear keys; only exporters have the
secret.

A lake is hashed from its first row or never. The lake does not store the secret, but a proof of it,
to refuse any other secret. A key has the same digest in every row, so all tables and reports work
as with clear keys. Free text, which may mention a key, is left out.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from fairlead.errors import ConfigurationError
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.warehouse.warehouse import Warehouse

SECRET, SECRET_FILE = "FAIRLEAD_HASH_SECRET", "FAIRLEAD_HASH_SECRET_FILE"
SHORTEST_SECRET = 16
"""Fewest bytes of a secret; a shorter secret could be guessed."""

_CURE = f"set {SECRET_FILE} to the path of a file with the secret, or {SECRET} to the secret itself"


@dataclass(frozen=True)
class Hashing:
    """Digests under one secret."""

    secret: bytes = field(repr=False)

    def name_of(self, key: str) -> str:
        """Return the digest of a key, 128 bits of HMAC-SHA256 in hexadecimal; the empty key stays
        empty."""
        return self._digest(key).hex()[:32] if key else ""

    def hidden(self, rows: pa.Table) -> pa.Table:
        """Return rows of bronze with digests for keys, keyed checksums for checksums, and no free
        text."""
        made: Mapping[str, Callable[[Any], Any]] = {
            "fairness_key": self.name_of,
            "ordering_key": self.name_of,
            "unique_key_hash": self._checksum,
            "error_fp": self._checksum,
            "error_text": lambda text: None,
            "details": lambda text: None,
        }
        for name, change in made.items():
            position = rows.schema.get_field_index(name)
            if position >= 0:
                field = rows.schema.field(position)
                # Hash each distinct value once.
                values = rows[name].combine_chunks().dictionary_encode()
                changed = pa.array(map(change, values.dictionary.to_pylist()), field.type)
                rows = rows.set_column(position, field, changed.take(values.indices))
        return rows

    def proof(self, lake: Warehouse) -> str:
        """Return a proof of this secret for this lake."""
        return self._digest(f"lake {lake.identity}").hex()

    def _checksum(self, number: int) -> int:
        return zlib.crc32(self._digest(str(number)))

    def _digest(self, text: str) -> bytes:
        return hmac.new(self.secret, text.encode(errors="surrogatepass"), hashlib.sha256).digest()


def is_hashed(lake: Warehouse) -> bool:
    """Return whether the keys of the lake are digests."""
    return lake.hash_proof is not None


def hashing_of(lake: Warehouse, environment: Mapping[str, str] = os.environ) -> Hashing | None:
    """Return the hashing of the keys of this lake; None without hashing.

    Raise ConfigurationError when the secret is missing or is not the one of the lake.
    """
    proof = lake.hash_proof
    if proof is None:
        return None
    found = _secret(environment)
    if found is None:
        raise ConfigurationError(
            f"the keys of lake {lake.shown} are hashed, and there is no secret: {_CURE}"
        )
    if not hmac.compare_digest(found.proof(lake), proof):
        raise ConfigurationError(
            f"the keys of lake {lake.shown} are hashed with another secret: {_CURE}"
        )
    return found


def start_hashing(lake: Warehouse, environment: Mapping[str, str] = os.environ) -> Hashing:
    """Hash the keys of this lake from now on; a repeated call changes nothing.

    Raise ConfigurationError without a secret, with a secret other than that of the lake, and for a
    lake that already has clear keys.
    """
    known = hashing_of(lake, environment)
    if known is not None:
        return known
    found = _secret(environment)
    if found is None:
        raise ConfigurationError(
            f"--hash-keys needs a secret: {_CURE}; to make one: openssl rand -hex 32"
        )
    if any(lake.table(table).files() for table in (ATTEMPTS, EVENTS)):
        raise ConfigurationError(
            f"lake {lake.shown} has clear keys already: export into a new one (--lake), and drop"
            " the reader of the old one with `fairlead pipeline status --forget`"
        )
    lake.keep_hash_proof(found.proof(lake))
    again = hashing_of(lake, environment)  # another process may have stored another secret first
    assert again is not None
    return again


def _secret(environment: Mapping[str, str]) -> Hashing | None:
    text = environment.get(SECRET)
    if text is None and SECRET_FILE in environment:
        path = Path(environment[SECRET_FILE])
        try:
            text = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"{SECRET_FILE}={path}: {error.__class__.__name__}; {_CURE}"
            ) from None
    if text is None:
        return None
    if len(text.encode()) < SHORTEST_SECRET:
        raise ConfigurationError(
            f"the secret is shorter than {SHORTEST_SECRET} bytes: openssl rand -hex 32 makes one"
        )
    return Hashing(text.encode())


def hashed_key(key: str) -> str:
    """Return the first ten hexadecimal digits of the key's SHA-256, which are the same in every
    report. A person who guesses a key can verify the guess."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:10]
