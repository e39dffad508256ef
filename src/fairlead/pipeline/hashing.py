"""Keys as keyed digests, so that no clear key lands in a lake: the secret stays with those who
export.

A lake is hashed from its first row or never. It keeps a proof of the secret, by which another one
is refused, and not the secret. The same key has the same digest in every row, so that all tables
are made as ever; free text, in which a key may stand, is left out.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.errors import ConfigurationError
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.lake import durable
from fairlead.pipeline.lake.lake import Lake

if TYPE_CHECKING:
    import pyarrow as pa

SECRET, SECRET_FILE = "FAIRLEAD_HASH_SECRET", "FAIRLEAD_HASH_SECRET_FILE"
SHORTEST_SECRET = 16
"""Bytes: a shorter one could be found by trying."""

_MARK = "_hashed"
_CURE = f"set {SECRET_FILE} to a file with it, or {SECRET} to the secret itself"


@dataclass(frozen=True)
class Hashing:
    """Digests under one secret."""

    secret: bytes = field(repr=False)

    def name_of(self, key: str) -> str:
        """What stands for a key, 128 bits of HMAC-SHA256 in hexadecimal; no key ("") stays none."""
        return self._digest(key).hex()[:32] if key else ""

    def hidden(self, rows: pa.Table) -> pa.Table:
        """Rows of bronze with digests for keys, keyed checksums for checksums, and no free text."""
        import pyarrow as pa

        # Each value is looked up once, however many rows have it.
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
            if position < 0:
                continue
            values = rows[name].to_pylist()
            changed = {value: None if value is None else change(value) for value in set(values)}
            made_column = pa.array(
                [changed[value] for value in values], rows.schema.field(position).type
            )
            rows = rows.set_column(position, rows.schema.field(position), made_column)
        return rows

    def proof(self, lake: Lake) -> str:
        """Tells this secret from others, for this lake."""
        return self._digest(f"lake {lake.identity}").hex()

    def _checksum(self, number: int) -> int:
        return zlib.crc32(self._digest(str(number)))

    def _digest(self, text: str) -> bytes:
        return hmac.new(self.secret, text.encode(errors="surrogatepass"), hashlib.sha256).digest()


def is_hashed(lake: Lake) -> bool:
    """Whether its keys are digests."""
    return (lake.root / _MARK).exists()


def hashing_of(lake: Lake, environment: Mapping[str, str] = os.environ) -> Hashing | None:
    """How the keys of this lake are hidden; None: they are not.

    Raises ConfigurationError when they are and the secret is missing, or is another one.
    """
    mark = lake.root / _MARK
    if not mark.exists():
        return None
    found = _secret(environment)
    if found is None:
        raise ConfigurationError(
            f"the keys of lake {lake.root} are hashed, and there is no secret: {_CURE}"
        )
    if not hmac.compare_digest(found.proof(lake), mark.read_text()):
        raise ConfigurationError(
            f"the keys of lake {lake.root} are hashed with another secret: {_CURE}"
        )
    return found


def start_hashing(lake: Lake, environment: Mapping[str, str] = os.environ) -> Hashing:
    """From now on no clear key lands in this lake; again is harmless.

    Raises ConfigurationError without a secret, with another one than before, and for a lake that
    has clear keys already.
    """
    known = hashing_of(lake, environment)
    if known is not None:
        return known
    found = _secret(environment)
    if found is None:
        raise ConfigurationError(
            f"--hash-keys needs a secret: {_CURE}; to make one: openssl rand -hex 32"
        )
    if any(lake.table(table).manifests.newest().rows for table in (ATTEMPTS, EVENTS)):
        raise ConfigurationError(
            f"lake {lake.root} has clear keys already: export into a new one (--lake), and let go"
            " of the old one with `fairlead pipeline status --forget`"
        )
    durable.create(lake.root / _MARK, found.proof(lake).encode())
    again = hashing_of(lake, environment)  # somebody else may have been first, with another secret
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
