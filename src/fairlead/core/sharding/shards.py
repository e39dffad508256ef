"""Shuffle sharding: gives each shard key a few of many streams, so that two keys seldom share all
of their streams.

MacCarthaigh, "Workload isolation using shuffle-sharding", Amazon Builders' Library; the choice is
rendezvous hashing, Thaler and Ravishankar 1998. Programs in other languages that write to the same
queue must compute the same shards:

    score(key, stream) = word (stream mod 8) of BLAKE2b-512(block || key)

where block is stream // 8 as 8 bytes, little-endian, key is in UTF-8, and the words of a digest are
eight unsigned 64-bit integers, little-endian. A key's shard is the streams of greatest score,
greatest first; of equal scores, the lower stream first.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from hashlib import blake2b

_WORDS = struct.Struct("<8Q")


@lru_cache(10_000)
def shard(key: str, streams: int, per_shard: int) -> tuple[int, ...]:
    """Return `per_shard` different numbers below `streams`, in the key's order of preference.
    Raises ValueError unless 1 <= per_shard <= streams.

    The result is the same on every machine, in every process and version. All C(streams, per_shard)
    sets are equally likely, so two keys share all their streams with probability
    1 / C(streams, per_shard). A greater `per_shard` only appends streams. One more stream does not
    reorder the others: it joins a shard with probability per_shard / (streams + 1) and then
    replaces one other; one stream less does the reverse.
    """
    if not 1 <= per_shard <= streams:
        raise ValueError(f"{per_shard} streams of {streams}: use 1 to {streams}")
    scores = _scores(key.encode(), streams)
    return tuple(sorted(range(streams), key=lambda stream: (-scores[stream], stream))[:per_shard])


def _scores(key: bytes, streams: int) -> list[int]:
    scores: list[int] = []
    for block in range((streams + 7) // 8):
        scores += _WORDS.unpack(blake2b(block.to_bytes(8, "little") + key).digest())
    return scores[:streams]
