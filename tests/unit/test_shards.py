"""Shuffle sharding: the test vectors for other languages, and the documented properties."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import combinations
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.sharding.shards import shard
from tests.tiers import examples

VECTORS = {
    ("", 1, 1): (0,),
    ("giraffe", 2, 1): (0,),
    ("panda", 2, 1): (1,),
    ("acme", 16, 4): (12, 2, 4, 3),
    ("acme", 64, 6): (17, 33, 29, 12, 55, 32),
    ("übergrößenträger", 64, 6): (51, 24, 37, 27, 46, 11),
}

keys = st.text(max_size=12)
sizes = st.tuples(st.integers(1, 24), st.integers(1, 24)).map(lambda pair: (max(pair), min(pair)))


@pytest.mark.parametrize(("arguments", "expected"), VECTORS.items(), ids=str)
def test_shards_match_the_published_vectors(
    arguments: tuple[str, int, int], expected: tuple[int, ...]
) -> None:
    assert shard(*arguments) == expected


def test_another_process_with_another_hash_seed_computes_the_same_shards() -> None:
    program = "from fairlead.core.sharding.shards import shard; print([shard(f'k{n}', 64, 6) for n in range(20)])"
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert answers == {str([shard(f"k{n}", 64, 6) for n in range(20)])}


def test_many_keys_get_the_same_shard_twice_in_range_and_without_repeats() -> None:
    for n in range(200):
        found = shard(f"key {n}", 16, 4)
        shard.cache_clear()
        assert shard(f"key {n}", 16, 4) == found
        assert len(set(found)) == 4 and set(found) <= set(range(16))


@given(keys, sizes)
def test_a_larger_shard_only_appends_streams(key: str, size: tuple[int, int]) -> None:
    streams, per_shard = size
    assert shard(key, streams, streams)[:per_shard] == shard(key, streams, per_shard)


@settings(max_examples=examples(300))
@given(keys, sizes)
def test_one_more_stream_replaces_at_most_one_and_keeps_the_order_of_the_others(
    key: str, size: tuple[int, int]
) -> None:
    streams, per_shard = size
    before, after = shard(key, streams, per_shard), shard(key, streams + 1, per_shard)
    kept = [stream for stream in after if stream != streams]
    assert kept == list(before[: len(kept)])
    assert len(kept) >= per_shard - 1


def test_every_set_of_streams_is_equally_likely() -> None:
    many = 56 * 100
    found = Counter(frozenset(shard(f"tenant {n}", 8, 3)) for n in range(many))
    expected = many / comb(8, 3)
    assert found.keys() == {frozenset(each) for each in combinations(range(8), 3)}
    chi_squared = sum((count - expected) ** 2 / expected for count in found.values())
    assert (
        chi_squared < 110
    )  # 55 degrees of freedom: a greater value has a probability of 1 in 100,000
    pairs = sum(
        frozenset(shard(f"a {n}", 8, 3)) == frozenset(shard(f"b {n}", 8, 3)) for n in range(many)
    )
    assert abs(pairs - expected) < 5 * expected**0.5


@pytest.mark.parametrize(("streams", "per_shard"), [(0, 0), (4, 0), (4, 5), (0, 1), (4, -1)])
def test_an_impossible_shard_size_is_refused(streams: int, per_shard: int) -> None:
    with pytest.raises(ValueError, match="use 1 to"):
        shard("acme", streams, per_shard)
