"""Damaged records: what a faulty or foreign program might write, made from good records."""

from __future__ import annotations

import json
import logging
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec

from tests import tiers

DEEP = b"[" * 5000
FEW = 500
MOST_MEGABYTES = 128
"""Megabytes by which the memory of a process may grow, however many records it reads."""

ODD: list[Any] = [
    None, True, False, 0, 1, -1, 9, 10, 255, 1 << 15, 1 << 31, (1 << 63) - 1, 1 << 63, 1 << 64,
    -(1 << 63), -(1 << 70), 1 << 70, 0.0, -0.5, 1e-9, 1e300, "", " ", "\x00", "a\x00b", "\ud800",
    "\U0010ffff", "é" * 300, "x" * 5000, "call", "t1", "submit", [], [[]], {}, {"": {}}, [None] * 40,
    "01977420-e271-7173-b85e-7c76d9bd202d", "01977420E2717173B85E7C76D9BD202D",
]  # fmt: skip
"""Values of which no field takes all."""

_NESTED = (b"[", b'{"a":', b"\x91", b"\x81\xa1a", b"[[{")
_BAD_TEXT = (b"\xff", b"\xed\xa0\x80", b"\xc3", b"\x00", b"\xf8\x88\x80\x80\x80", b"\\ud800")


class Reader(NamedTuple):
    """A reader, and good records for it."""

    read: Callable[[bytes], object]
    good: list[bytes]
    refusals: tuple[type[Exception], ...]
    """The documented errors; without any, the reader returns something for every record."""


def try_damaged(reader: Reader, name: str) -> None:
    """Give damaged records to a reader, whose name is part of the seed. Raise AssertionError for
    another error than the documented ones."""
    refused, memory, began = 0, peak_memory(), time.monotonic()
    logging.disable()  # pytest keeps each line of the log
    try:
        refused = _refused(reader, name)
    finally:
        logging.disable(logging.NOTSET)
    for record in reader.good[:1]:
        reader.read(record)
    assert refused or not reader.refusals
    grown, seconds = peak_memory() - memory, time.monotonic() - began
    print(
        f"{name}: {fuzz_count(FEW):,} damaged records, {refused:,} refused, {seconds:.0f} s,"
        f" {grown} MB more"
    )
    assert grown < MOST_MEGABYTES


def _refused(reader: Reader, name: str) -> int:
    refused = 0
    for record in _records(reader, name):
        try:
            reader.read(record)
        except reader.refusals:
            refused += 1
        except Exception as error:
            shown = record if len(record) < 500 else record[:200] + b"..." + record[-200:]
            raise AssertionError(f"{type(error).__name__} for {shown!r}") from error
    return refused


def peak_memory() -> int:
    """Return the most memory that this process has had, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _records(reader: Reader, name: str) -> Iterator[bytes]:
    yield from reader.good
    yield from (b"", DEEP, b'{"x":' + DEEP, b'["t1",' + DEEP, b'"\xff"', b"\xc1", b"\x91" * 5000)
    seed = f"{tiers.seed()} {name}"
    yield from damaged(reader.good, fuzz_count(FEW), Random(seed).getrandbits(32))


def fuzz_count(few: int) -> int:
    """Return how many damaged records a test tries: $FAIRLEAD_FUZZ if set, else `few`."""
    return int(os.environ.get("FAIRLEAD_FUZZ", few))


def damaged(good: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """Yield `count` damaged copies of good records in JSON or MessagePack. A few copies are
    undamaged or readable."""
    random = Random(seed)
    for _ in range(count):
        record = random.choice(good)
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            record = random.choice(_DAMAGES)(random, record, good)
        yield record


def _flip(random: Random, record: bytes, _: Sequence[bytes]) -> bytes:
    changed = bytearray(record or b"\x00")
    for _ in range(random.randint(1, 4)):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _cut(random: Random, record: bytes, _: Sequence[bytes]) -> bytes:
    begin, end = sorted(random.randint(0, len(record)) for _ in range(2))
    return random.choice((record[:end], record[begin:], record[:begin] + record[end:]))


def _splice(random: Random, record: bytes, good: Sequence[bytes]) -> bytes:
    other = random.choice(good)
    return record[: random.randint(0, len(record))] + other[random.randint(0, len(other)) :]


def _noise(random: Random, _: bytes, __: Sequence[bytes]) -> bytes:
    return random.randbytes(random.randint(0, 40))


def _nest(random: Random, record: bytes, _: Sequence[bytes]) -> bytes:
    at = random.randint(0, len(record))
    return record[:at] + random.choice(_NESTED) * random.choice((2, 50, 3000)) + record[at:]


def _misspell(random: Random, record: bytes, _: Sequence[bytes]) -> bytes:
    at = random.randint(0, len(record))
    return record[:at] + random.choice(_BAD_TEXT) + record[at:]


def _revalue(random: Random, record: bytes, _: Sequence[bytes]) -> bytes:
    """Replace a value inside the record by an odd one, or remove or double it."""
    decode, encode = _format(record)
    try:
        value = decode(record)
    except (ValueError, RecursionError):
        return record
    root = [value]
    parent, key = random.choice(list(_spots(root)))
    match random.randrange(8):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, list):
            parent.insert(key, parent[key])
        case 2:
            parent[key] = [parent[key]]
        case 3 if isinstance(parent, dict):
            parent[random.choice(("", "x", "\x00", "a\ud800"))] = parent.pop(key)
        case _:
            parent[key] = random.choice(ODD)
    try:
        return encode(root[0]) if root else b""
    except (ValueError, OverflowError):  # MessagePack has no such number or text
        return record


_DAMAGES = [_flip, _cut, _splice, _noise, _nest, _misspell, *[_revalue] * 8]


def _spots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield container and key of each value inside a value."""
    items = enumerate(value) if isinstance(value, list) else ()
    for key, part in list(value.items()) if isinstance(value, dict) else items:
        yield value, key
        yield from _spots(part)


def _format(record: bytes) -> tuple[Any, Any]:
    """Return decoder and encoder of the record's format."""
    if record[:1] in b'{["' or record[:1].isdigit():
        return json.loads, lambda value: json.dumps(value).encode()
    return msgspec.msgpack.decode, msgspec.msgpack.encode
